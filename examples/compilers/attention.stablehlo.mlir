module @jit_attention attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x64x128xf32>, %arg1: tensor<128xf32>, %arg2: tensor<128x128xf32>, %arg3: tensor<128x128xf32>, %arg4: tensor<128x128xf32>, %arg5: tensor<128x128xf32>) -> (tensor<2x64x128xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<2x64x128xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x64x128xf32>, tensor<f32>) -> tensor<2x64xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x1xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %4 = stablehlo.divide %2, %3 : tensor<2x64x1xf32>
    %cst_1 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x64x1xf32>
    %6 = stablehlo.add %4, %5 : tensor<2x64x1xf32>
    %7 = stablehlo.rsqrt %6 : tensor<2x64x1xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<2x64x1xf32>) -> tensor<2x64x128xf32>
    %9 = stablehlo.multiply %arg0, %8 : tensor<2x64x128xf32>
    %10 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<128xf32>) -> tensor<1x1x128xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2] : (tensor<1x1x128xf32>) -> tensor<2x64x128xf32>
    %12 = stablehlo.multiply %9, %11 : tensor<2x64x128xf32>
    %13 = stablehlo.dot_general %12, %arg2, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x128xf32>) -> tensor<2x64x128xf32>
    %14 = stablehlo.reshape %13 : (tensor<2x64x128xf32>) -> tensor<2x64x4x32xf32>
    %15 = stablehlo.transpose %14, dims = [0, 2, 1, 3] : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %16 = stablehlo.dot_general %12, %arg3, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x128xf32>) -> tensor<2x64x128xf32>
    %17 = stablehlo.reshape %16 : (tensor<2x64x128xf32>) -> tensor<2x64x4x32xf32>
    %18 = stablehlo.transpose %17, dims = [0, 2, 1, 3] : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %19 = stablehlo.dot_general %12, %arg4, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x128xf32>) -> tensor<2x64x128xf32>
    %20 = stablehlo.reshape %19 : (tensor<2x64x128xf32>) -> tensor<2x64x4x32xf32>
    %21 = stablehlo.transpose %20, dims = [0, 2, 1, 3] : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %22 = stablehlo.dot_general %15, %18, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x64x32xf32>, tensor<2x4x64x32xf32>) -> tensor<2x4x64x64xf32>
    %cst_2 = stablehlo.constant dense<0.176776692> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
    %24 = stablehlo.multiply %22, %23 : tensor<2x4x64x64xf32>
    %25 = stablehlo.iota dim = 0 : tensor<64xi32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %27 = stablehlo.iota dim = 0 : tensor<64xi32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [1] : (tensor<64xi32>) -> tensor<1x64xi32>
    %29 = stablehlo.broadcast_in_dim %26, dims = [0, 1] : (tensor<64x1xi32>) -> tensor<64x64xi32>
    %30 = stablehlo.broadcast_in_dim %28, dims = [0, 1] : (tensor<1x64xi32>) -> tensor<64x64xi32>
    %31 = stablehlo.compare GE, %29, %30, SIGNED : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
    %cst_3 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %32 = call @_where(%31, %24, %cst_3) : (tensor<64x64xi1>, tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64x64xf32>
    %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %33 = stablehlo.reduce(%32 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %cst_5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x64xf32>
    %35 = stablehlo.maximum %34, %33 : tensor<2x4x64xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %38 = stablehlo.subtract %32, %37 : tensor<2x4x64x64xf32>
    %39 = stablehlo.exponential %38 : tensor<2x4x64x64xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %40 = stablehlo.reduce(%39 init: %cst_6) applies stablehlo.add across dimensions = [3] : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64xf32>
    %41 = stablehlo.broadcast_in_dim %40, dims = [0, 1, 2] : (tensor<2x4x64xf32>) -> tensor<2x4x64x1xf32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [0, 1, 2, 3] : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %43 = stablehlo.divide %39, %42 : tensor<2x4x64x64xf32>
    %44 = stablehlo.dot_general %43, %21, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x64x64xf32>, tensor<2x4x64x32xf32>) -> tensor<2x4x64x32xf32>
    %45 = stablehlo.transpose %44, dims = [0, 2, 1, 3] : (tensor<2x4x64x32xf32>) -> tensor<2x64x4x32xf32>
    %46 = stablehlo.reshape %45 : (tensor<2x64x4x32xf32>) -> tensor<2x64x128xf32>
    %47 = stablehlo.dot_general %46, %arg5, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x128xf32>) -> tensor<2x64x128xf32>
    %48 = stablehlo.add %arg0, %47 : tensor<2x64x128xf32>
    return %48 : tensor<2x64x128xf32>
  }
  func.func private @_where(%arg0: tensor<64x64xi1>, %arg1: tensor<2x4x64x64xf32>, %arg2: tensor<f32>) -> tensor<2x4x64x64xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<64x64xi1>) -> tensor<2x4x64x64xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<2x4x64x64xi1>, tensor<2x4x64x64xf32>
    return %3 : tensor<2x4x64x64xf32>
  }
}
