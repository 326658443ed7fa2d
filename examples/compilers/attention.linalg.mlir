#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0) -> (d0)>
#map5 = affine_map<(d0, d1) -> (d0, 0)>
#map6 = affine_map<(d0, d1) -> (0, d1)>
#map7 = affine_map<(d0, d1) -> (d0, d1)>
#map8 = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
#map9 = affine_map<(d0, d1, d2, d3) -> ()>
#map10 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map11 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
module {
  func.func @attention(%arg0: tensor<2x64x128xf32>) -> tensor<2x64x128xf32> {
    %c0_i64 = arith.constant 0 : i64
    %c2_i64 = arith.constant 2 : i64
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 0xFF800000 : f32
    %cst_1 = arith.constant dense<-1.000000e+09> : tensor<f32>
    %cst_2 = arith.constant dense_resource<torch_tensor_128_128_torch.float32_3> : tensor<128x128xf32>
    %cst_3 = arith.constant 0.17677669529663689 : f64
    %cst_4 = arith.constant dense_resource<torch_tensor_128_128_torch.float32_2> : tensor<128x128xf32>
    %cst_5 = arith.constant dense_resource<torch_tensor_128_128_torch.float32_1> : tensor<128x128xf32>
    %cst_6 = arith.constant dense_resource<torch_tensor_128_128_torch.float32> : tensor<128x128xf32>
    %cst_7 = arith.constant dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>
    %cst_8 = arith.constant 1.000000e-05 : f64
    %cst_9 = arith.constant 1.280000e+02 : f32
    %0 = tensor.empty() : tensor<2x64x128xf32>
    %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0 : tensor<2x64x128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = math.fpowi %in, %c2_i64 : f32, i64
      linalg.yield %44 : f32
    } -> tensor<2x64x128xf32>
    %2 = tensor.empty() : tensor<2x64x1xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<2x64x1xf32>) -> tensor<2x64x1xf32>
    %4 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1 : tensor<2x64x128xf32>) outs(%3 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = arith.addf %in, %out : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x1xf32>
    %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = arith.divf %in, %cst_9 : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x1xf32>
    %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = arith.truncf %cst_8 : f64 to f32
      %45 = arith.addf %in, %44 : f32
      linalg.yield %45 : f32
    } -> tensor<2x64x1xf32>
    %7 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = math.rsqrt %in : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x1xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %7 : tensor<2x64x128xf32>, tensor<2x64x1xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_30: f32, %out: f32):
      %44 = arith.mulf %in, %in_30 : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x128xf32>
    %9 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8, %cst_7 : tensor<2x64x128xf32>, tensor<128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_30: f32, %out: f32):
      %44 = arith.mulf %in, %in_30 : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x128xf32>
    %10 = tensor.empty() : tensor<128x128xf32>
    %transposed = linalg.transpose ins(%cst_6 : tensor<128x128xf32>) outs(%10 : tensor<128x128xf32>) permutation = [1, 0] 
    %collapsed = tensor.collapse_shape %9 [[0, 1], [2]] : tensor<2x64x128xf32> into tensor<128x128xf32>
    %11 = linalg.fill ins(%cst : f32) outs(%10 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %12 = linalg.matmul ins(%collapsed, %transposed : tensor<128x128xf32>, tensor<128x128xf32>) outs(%11 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %expanded = tensor.expand_shape %12 [[0, 1], [2, 3]] output_shape [2, 64, 4, 32] : tensor<128x128xf32> into tensor<2x64x4x32xf32>
    %13 = tensor.empty() : tensor<2x4x64x32xf32>
    %transposed_10 = linalg.transpose ins(%expanded : tensor<2x64x4x32xf32>) outs(%13 : tensor<2x4x64x32xf32>) permutation = [0, 2, 1, 3] 
    %transposed_11 = linalg.transpose ins(%cst_5 : tensor<128x128xf32>) outs(%10 : tensor<128x128xf32>) permutation = [1, 0] 
    %14 = linalg.matmul ins(%collapsed, %transposed_11 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%11 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %expanded_12 = tensor.expand_shape %14 [[0, 1], [2, 3]] output_shape [2, 64, 4, 32] : tensor<128x128xf32> into tensor<2x64x4x32xf32>
    %transposed_13 = linalg.transpose ins(%cst_4 : tensor<128x128xf32>) outs(%10 : tensor<128x128xf32>) permutation = [1, 0] 
    %15 = linalg.matmul ins(%collapsed, %transposed_13 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%11 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %expanded_14 = tensor.expand_shape %15 [[0, 1], [2, 3]] output_shape [2, 64, 4, 32] : tensor<128x128xf32> into tensor<2x64x4x32xf32>
    %transposed_15 = linalg.transpose ins(%expanded_14 : tensor<2x64x4x32xf32>) outs(%13 : tensor<2x4x64x32xf32>) permutation = [0, 2, 1, 3] 
    %16 = tensor.empty() : tensor<2x4x32x64xf32>
    %transposed_16 = linalg.transpose ins(%expanded_12 : tensor<2x64x4x32xf32>) outs(%16 : tensor<2x4x32x64xf32>) permutation = [0, 2, 3, 1] 
    %collapsed_17 = tensor.collapse_shape %transposed_10 [[0, 1], [2], [3]] : tensor<2x4x64x32xf32> into tensor<8x64x32xf32>
    %collapsed_18 = tensor.collapse_shape %transposed_16 [[0, 1], [2], [3]] : tensor<2x4x32x64xf32> into tensor<8x32x64xf32>
    %17 = tensor.empty() : tensor<8x64x64xf32>
    %18 = linalg.fill ins(%cst : f32) outs(%17 : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
    %19 = linalg.batch_matmul ins(%collapsed_17, %collapsed_18 : tensor<8x64x32xf32>, tensor<8x32x64xf32>) outs(%18 : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
    %expanded_19 = tensor.expand_shape %19 [[0, 1], [2], [3]] output_shape [2, 4, 64, 64] : tensor<8x64x64xf32> into tensor<2x4x64x64xf32>
    %20 = tensor.empty() : tensor<2x4x64x64xf32>
    %21 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_19 : tensor<2x4x64x64xf32>) outs(%20 : tensor<2x4x64x64xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = arith.truncf %cst_3 : f64 to f32
      %45 = arith.mulf %in, %44 : f32
      linalg.yield %45 : f32
    } -> tensor<2x4x64x64xf32>
    %22 = tensor.empty() : tensor<64xi64>
    %23 = linalg.generic {indexing_maps = [#map4], iterator_types = ["parallel"]} outs(%22 : tensor<64xi64>) {
    ^bb0(%out: i64):
      %44 = linalg.index 0 : index
      %45 = arith.index_cast %44 : index to i64
      linalg.yield %45 : i64
    } -> tensor<64xi64>
    %expanded_20 = tensor.expand_shape %23 [[0, 1]] output_shape [64, 1] : tensor<64xi64> into tensor<64x1xi64>
    %expanded_21 = tensor.expand_shape %23 [[0, 1]] output_shape [1, 64] : tensor<64xi64> into tensor<1x64xi64>
    %24 = tensor.empty() : tensor<64x64xi1>
    %25 = linalg.generic {indexing_maps = [#map5, #map6, #map7], iterator_types = ["parallel", "parallel"]} ins(%expanded_20, %expanded_21 : tensor<64x1xi64>, tensor<1x64xi64>) outs(%24 : tensor<64x64xi1>) {
    ^bb0(%in: i64, %in_30: i64, %out: i1):
      %44 = arith.cmpi sge, %in, %in_30 : i64
      linalg.yield %44 : i1
    } -> tensor<64x64xi1>
    %26 = linalg.generic {indexing_maps = [#map8, #map3, #map9, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%25, %21, %cst_1 : tensor<64x64xi1>, tensor<2x4x64x64xf32>, tensor<f32>) outs(%20 : tensor<2x4x64x64xf32>) {
    ^bb0(%in: i1, %in_30: f32, %in_31: f32, %out: f32):
      %44 = arith.select %in, %in_30, %in_31 : f32
      linalg.yield %44 : f32
    } -> tensor<2x4x64x64xf32>
    %27 = tensor.empty() : tensor<2x4x64xi64>
    %28 = linalg.fill ins(%c0_i64 : i64) outs(%27 : tensor<2x4x64xi64>) -> tensor<2x4x64xi64>
    %29 = tensor.empty() : tensor<2x4x64xf32>
    %30 = linalg.fill ins(%cst_0 : f32) outs(%29 : tensor<2x4x64xf32>) -> tensor<2x4x64xf32>
    %31:2 = linalg.generic {indexing_maps = [#map3, #map10, #map10], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%26 : tensor<2x4x64x64xf32>) outs(%30, %28 : tensor<2x4x64xf32>, tensor<2x4x64xi64>) {
    ^bb0(%in: f32, %out: f32, %out_30: i64):
      %44 = linalg.index 3 : index
      %45 = arith.index_cast %44 : index to i64
      %46 = arith.maximumf %in, %out : f32
      %47 = arith.cmpf ogt, %in, %out : f32
      %48 = arith.select %47, %45, %out_30 : i64
      linalg.yield %46, %48 : f32, i64
    } -> (tensor<2x4x64xf32>, tensor<2x4x64xi64>)
    %expanded_22 = tensor.expand_shape %31#0 [[0], [1], [2, 3]] output_shape [2, 4, 64, 1] : tensor<2x4x64xf32> into tensor<2x4x64x1xf32>
    %32 = linalg.generic {indexing_maps = [#map3, #map11, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%26, %expanded_22 : tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>) outs(%20 : tensor<2x4x64x64xf32>) {
    ^bb0(%in: f32, %in_30: f32, %out: f32):
      %44 = arith.subf %in, %in_30 : f32
      linalg.yield %44 : f32
    } -> tensor<2x4x64x64xf32>
    %33 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%32 : tensor<2x4x64x64xf32>) outs(%20 : tensor<2x4x64x64xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = math.exp %in : f32
      linalg.yield %44 : f32
    } -> tensor<2x4x64x64xf32>
    %34 = tensor.empty() : tensor<2x4x64x1xf32>
    %35 = linalg.fill ins(%cst : f32) outs(%34 : tensor<2x4x64x1xf32>) -> tensor<2x4x64x1xf32>
    %36 = linalg.generic {indexing_maps = [#map3, #map11], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%33 : tensor<2x4x64x64xf32>) outs(%35 : tensor<2x4x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %44 = arith.addf %in, %out : f32
      linalg.yield %44 : f32
    } -> tensor<2x4x64x1xf32>
    %37 = linalg.generic {indexing_maps = [#map3, #map11, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%33, %36 : tensor<2x4x64x64xf32>, tensor<2x4x64x1xf32>) outs(%20 : tensor<2x4x64x64xf32>) {
    ^bb0(%in: f32, %in_30: f32, %out: f32):
      %44 = arith.divf %in, %in_30 : f32
      linalg.yield %44 : f32
    } -> tensor<2x4x64x64xf32>
    %collapsed_23 = tensor.collapse_shape %37 [[0, 1], [2], [3]] : tensor<2x4x64x64xf32> into tensor<8x64x64xf32>
    %collapsed_24 = tensor.collapse_shape %transposed_15 [[0, 1], [2], [3]] : tensor<2x4x64x32xf32> into tensor<8x64x32xf32>
    %38 = tensor.empty() : tensor<8x64x32xf32>
    %39 = linalg.fill ins(%cst : f32) outs(%38 : tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
    %40 = linalg.batch_matmul ins(%collapsed_23, %collapsed_24 : tensor<8x64x64xf32>, tensor<8x64x32xf32>) outs(%39 : tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
    %expanded_25 = tensor.expand_shape %40 [[0, 1], [2], [3]] output_shape [2, 4, 64, 32] : tensor<8x64x32xf32> into tensor<2x4x64x32xf32>
    %41 = tensor.empty() : tensor<2x64x4x32xf32>
    %transposed_26 = linalg.transpose ins(%expanded_25 : tensor<2x4x64x32xf32>) outs(%41 : tensor<2x64x4x32xf32>) permutation = [0, 2, 1, 3] 
    %transposed_27 = linalg.transpose ins(%cst_2 : tensor<128x128xf32>) outs(%10 : tensor<128x128xf32>) permutation = [1, 0] 
    %collapsed_28 = tensor.collapse_shape %transposed_26 [[0, 1], [2, 3]] : tensor<2x64x4x32xf32> into tensor<128x128xf32>
    %42 = linalg.matmul ins(%collapsed_28, %transposed_27 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%11 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %expanded_29 = tensor.expand_shape %42 [[0, 1], [2]] output_shape [2, 64, 128] : tensor<128x128xf32> into tensor<2x64x128xf32>
    %43 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %expanded_29 : tensor<2x64x128xf32>, tensor<2x64x128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_30: f32, %out: f32):
      %44 = arith.addf %in, %in_30 : f32
      linalg.yield %44 : f32
    } -> tensor<2x64x128xf32>
    return %43 : tensor<2x64x128xf32>
  }
}
