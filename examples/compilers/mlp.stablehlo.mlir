module @jit_mlp attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x64x128xf32>, %arg1: tensor<128xf32>, %arg2: tensor<128x352xf32>, %arg3: tensor<128x352xf32>, %arg4: tensor<352x128xf32>) -> (tensor<2x64x128xf32> {jax.result_info = "result"}) {
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
    %13 = stablehlo.dot_general %12, %arg2, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x352xf32>) -> tensor<2x64x352xf32>
    %14 = call @silu(%13) : (tensor<2x64x352xf32>) -> tensor<2x64x352xf32>
    %15 = stablehlo.dot_general %12, %arg3, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x128xf32>, tensor<128x352xf32>) -> tensor<2x64x352xf32>
    %16 = stablehlo.multiply %14, %15 : tensor<2x64x352xf32>
    %17 = stablehlo.dot_general %16, %arg4, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64x352xf32>, tensor<352x128xf32>) -> tensor<2x64x128xf32>
    %18 = stablehlo.add %arg0, %17 : tensor<2x64x128xf32>
    return %18 : tensor<2x64x128xf32>
  }
  func.func private @silu(%arg0: tensor<2x64x352xf32>) -> tensor<2x64x352xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2x64x352xf32>
    %1 = stablehlo.exponential %0 : tensor<2x64x352xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x64x352xf32>
    %3 = stablehlo.add %2, %1 : tensor<2x64x352xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x64x352xf32>
    %5 = stablehlo.divide %4, %3 : tensor<2x64x352xf32>
    %6 = stablehlo.multiply %arg0, %5 : tensor<2x64x352xf32>
    return %6 : tensor<2x64x352xf32>
  }
}
