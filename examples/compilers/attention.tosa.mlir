module {
  func.func @attention(%arg0: tensor<2x64x128xf32>) -> tensor<2x64x128xf32> {
    %0 = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
    %1 = "tosa.const"() <{values = dense<0.000000e+00> : tensor<1xf32>}> : () -> tensor<1xf32>
    %2 = tosa.const_shape  {values = dense<[1, 128, 128]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %3 = tosa.const_shape  {values = dense<[2, 64, 128]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %4 = tosa.const_shape  {values = dense<[2, 64, 4, 32]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %5 = tosa.const_shape  {values = dense<[8, 64, 32]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %6 = tosa.const_shape  {values = dense<[8, 32, 64]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %7 = tosa.const_shape  {values = dense<[2, 4, 64, 64]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %8 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<64xi64>}> : () -> tensor<64xi64>
    %9 = tosa.const_shape  {values = dense<[64, 1]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %10 = tosa.const_shape  {values = dense<[1, 64]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %11 = tosa.const_shape  {values = dense<[1, 1, 64, 64]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %12 = tosa.const_shape  {values = dense<[8, 64, 64]> : tensor<3xindex>} : () -> !tosa.shape<3>
    %13 = tosa.const_shape  {values = dense<[2, 4, 64, 32]> : tensor<4xindex>} : () -> !tosa.shape<4>
    %14 = "tosa.const"() <{values = dense<2.000000e+00> : tensor<1x1x1xf32>}> : () -> tensor<1x1x1xf32>
    %15 = "tosa.const"() <{values = dense<7.812500e-03> : tensor<1x1x1xf32>}> : () -> tensor<1x1x1xf32>
    %16 = "tosa.const"() <{values = dense<9.99999974E-6> : tensor<1x1x1xf32>}> : () -> tensor<1x1x1xf32>
    %17 = "tosa.const"() <{values = dense_resource<torch_tensor_128_torch.float32> : tensor<1x1x128xf32>}> : () -> tensor<1x1x128xf32>
    %18 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x128x128xf32>}> : () -> tensor<1x128x128xf32>
    %19 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x128x128xf32>}> : () -> tensor<1x128x128xf32>
    %20 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x128x128xf32>}> : () -> tensor<1x128x128xf32>
    %21 = "tosa.const"() <{values = dense<0.176776692> : tensor<1x1x1x1xf32>}> : () -> tensor<1x1x1x1xf32>
    %22 = "tosa.const"() <{values = dense<-1.000000e+09> : tensor<1x1x1x1xf32>}> : () -> tensor<1x1x1x1xf32>
    %23 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<1x128x128xf32>}> : () -> tensor<1x128x128xf32>
    %24 = tosa.pow %arg0, %14 : (tensor<2x64x128xf32>, tensor<1x1x1xf32>) -> tensor<2x64x128xf32>
    %25 = tosa.reduce_sum %24 {axis = 2 : i32} : (tensor<2x64x128xf32>) -> tensor<2x64x1xf32>
    %26 = tosa.mul %25, %15, %0 : (tensor<2x64x1xf32>, tensor<1x1x1xf32>, tensor<1xi8>) -> tensor<2x64x1xf32>
    %27 = tosa.add %26, %16 : (tensor<2x64x1xf32>, tensor<1x1x1xf32>) -> tensor<2x64x1xf32>
    %28 = tosa.rsqrt %27 : (tensor<2x64x1xf32>) -> tensor<2x64x1xf32>
    %29 = tosa.mul %arg0, %28, %0 : (tensor<2x64x128xf32>, tensor<2x64x1xf32>, tensor<1xi8>) -> tensor<2x64x128xf32>
    %30 = tosa.mul %29, %17, %0 : (tensor<2x64x128xf32>, tensor<1x1x128xf32>, tensor<1xi8>) -> tensor<2x64x128xf32>
    %31 = tosa.reshape %30, %2 : (tensor<2x64x128xf32>, !tosa.shape<3>) -> tensor<1x128x128xf32>
    %32 = tosa.matmul %31, %18, %1, %1 : (tensor<1x128x128xf32>, tensor<1x128x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x128x128xf32>
    %33 = tosa.reshape %32, %4 : (tensor<1x128x128xf32>, !tosa.shape<4>) -> tensor<2x64x4x32xf32>
    %34 = tosa.transpose %33 {perms = array<i32: 0, 2, 1, 3>} : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %35 = tosa.matmul %31, %19, %1, %1 : (tensor<1x128x128xf32>, tensor<1x128x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x128x128xf32>
    %36 = tosa.reshape %35, %4 : (tensor<1x128x128xf32>, !tosa.shape<4>) -> tensor<2x64x4x32xf32>
    %37 = tosa.matmul %31, %20, %1, %1 : (tensor<1x128x128xf32>, tensor<1x128x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x128x128xf32>
    %38 = tosa.reshape %37, %4 : (tensor<1x128x128xf32>, !tosa.shape<4>) -> tensor<2x64x4x32xf32>
    %39 = tosa.transpose %38 {perms = array<i32: 0, 2, 1, 3>} : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %40 = tosa.transpose %36 {perms = array<i32: 0, 2, 3, 1>} : (tensor<2x64x4x32xf32>) -> tensor<2x4x32x64xf32>
    %41 = tosa.reshape %34, %5 : (tensor<2x4x64x32xf32>, !tosa.shape<3>) -> tensor<8x64x32xf32>
    %42 = tosa.reshape %40, %6 : (tensor<2x4x32x64xf32>, !tosa.shape<3>) -> tensor<8x32x64xf32>
    %43 = tosa.matmul %41, %42, %1, %1 : (tensor<8x64x32xf32>, tensor<8x32x64xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<8x64x64xf32>
    %44 = tosa.reshape %43, %7 : (tensor<8x64x64xf32>, !tosa.shape<4>) -> tensor<2x4x64x64xf32>
    %45 = tosa.mul %44, %21, %0 : (tensor<2x4x64x64xf32>, tensor<1x1x1x1xf32>, tensor<1xi8>) -> tensor<2x4x64x64xf32>
    %46 = tosa.reshape %8, %9 : (tensor<64xi64>, !tosa.shape<2>) -> tensor<64x1xi64>
    %47 = tosa.reshape %8, %10 : (tensor<64xi64>, !tosa.shape<2>) -> tensor<1x64xi64>
    %48 = tosa.greater_equal %46, %47 : (tensor<64x1xi64>, tensor<1x64xi64>) -> tensor<64x64xi1>
    %49 = tosa.reshape %48, %11 : (tensor<64x64xi1>, !tosa.shape<4>) -> tensor<1x1x64x64xi1>
    %50 = tosa.select %49, %45, %22 : (tensor<1x1x64x64xi1>, tensor<2x4x64x64xf32>, tensor<1x1x1x1xf32>) -> tensor<2x4x64x64xf32>
    %51 = tosa.reduce_max %50 {axis = 3 : i32} : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x1xf32>
    %52 = tosa.sub %50, %51 : (tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>) -> tensor<2x4x64x64xf32>
    %53 = tosa.exp %52 : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x64xf32>
    %54 = tosa.reduce_sum %53 {axis = 3 : i32} : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x1xf32>
    %55 = tosa.reciprocal %54 : (tensor<2x4x64x1xf32>) -> tensor<2x4x64x1xf32>
    %56 = tosa.mul %53, %55, %0 : (tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>, tensor<1xi8>) -> tensor<2x4x64x64xf32>
    %57 = tosa.reshape %56, %12 : (tensor<2x4x64x64xf32>, !tosa.shape<3>) -> tensor<8x64x64xf32>
    %58 = tosa.reshape %39, %5 : (tensor<2x4x64x32xf32>, !tosa.shape<3>) -> tensor<8x64x32xf32>
    %59 = tosa.matmul %57, %58, %1, %1 : (tensor<8x64x64xf32>, tensor<8x64x32xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<8x64x32xf32>
    %60 = tosa.reshape %59, %13 : (tensor<8x64x32xf32>, !tosa.shape<4>) -> tensor<2x4x64x32xf32>
    %61 = tosa.transpose %60 {perms = array<i32: 0, 2, 1, 3>} : (tensor<2x4x64x32xf32>) -> tensor<2x64x4x32xf32>
    %62 = tosa.reshape %61, %2 : (tensor<2x64x4x32xf32>, !tosa.shape<3>) -> tensor<1x128x128xf32>
    %63 = tosa.matmul %62, %23, %1, %1 : (tensor<1x128x128xf32>, tensor<1x128x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x128x128xf32>
    %64 = tosa.reshape %63, %3 : (tensor<1x128x128xf32>, !tosa.shape<3>) -> tensor<2x64x128xf32>
    %65 = tosa.add %arg0, %64 : (tensor<2x64x128xf32>, tensor<2x64x128xf32>) -> tensor<2x64x128xf32>
    return %65 : tensor<2x64x128xf32>
  }
}
