#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
module {
  func.func @mlp(%arg0: tensor<2x64x128xf32>) -> tensor<2x64x128xf32> {
    %c2_i64 = arith.constant 2 : i64
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 1.000000e+00 : f32
    %cst_1 = arith.constant dense_resource<torch_tensor_128_352_torch.float32> : tensor<128x352xf32>
    %cst_2 = arith.constant dense_resource<torch_tensor_352_128_torch.float32_1> : tensor<352x128xf32>
    %cst_3 = arith.constant dense_resource<torch_tensor_352_128_torch.float32> : tensor<352x128xf32>
    %cst_4 = arith.constant dense_resource<torch_tensor_128_torch.float32> : tensor<128xf32>
    %cst_5 = arith.constant 1.000000e-05 : f64
    %cst_6 = arith.constant 1.280000e+02 : f32
    %0 = tensor.empty() : tensor<2x64x128xf32>
    %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0 : tensor<2x64x128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = math.fpowi %in, %c2_i64 : f32, i64
      linalg.yield %23 : f32
    } -> tensor<2x64x128xf32>
    %2 = tensor.empty() : tensor<2x64x1xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<2x64x1xf32>) -> tensor<2x64x1xf32>
    %4 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1 : tensor<2x64x128xf32>) outs(%3 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = arith.addf %in, %out : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x1xf32>
    %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = arith.divf %in, %cst_6 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x1xf32>
    %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = arith.truncf %cst_5 : f64 to f32
      %24 = arith.addf %in, %23 : f32
      linalg.yield %24 : f32
    } -> tensor<2x64x1xf32>
    %7 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6 : tensor<2x64x1xf32>) outs(%2 : tensor<2x64x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = math.rsqrt %in : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x1xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %7 : tensor<2x64x128xf32>, tensor<2x64x1xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_12: f32, %out: f32):
      %23 = arith.mulf %in, %in_12 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x128xf32>
    %9 = linalg.generic {indexing_maps = [#map, #map2, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8, %cst_4 : tensor<2x64x128xf32>, tensor<128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_12: f32, %out: f32):
      %23 = arith.mulf %in, %in_12 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x128xf32>
    %10 = tensor.empty() : tensor<128x352xf32>
    %transposed = linalg.transpose ins(%cst_3 : tensor<352x128xf32>) outs(%10 : tensor<128x352xf32>) permutation = [1, 0] 
    %collapsed = tensor.collapse_shape %9 [[0, 1], [2]] : tensor<2x64x128xf32> into tensor<128x128xf32>
    %11 = linalg.fill ins(%cst : f32) outs(%10 : tensor<128x352xf32>) -> tensor<128x352xf32>
    %12 = linalg.matmul ins(%collapsed, %transposed : tensor<128x128xf32>, tensor<128x352xf32>) outs(%11 : tensor<128x352xf32>) -> tensor<128x352xf32>
    %expanded = tensor.expand_shape %12 [[0, 1], [2]] output_shape [2, 64, 352] : tensor<128x352xf32> into tensor<2x64x352xf32>
    %13 = tensor.empty() : tensor<2x64x352xf32>
    %14 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded : tensor<2x64x352xf32>) outs(%13 : tensor<2x64x352xf32>) {
    ^bb0(%in: f32, %out: f32):
      %23 = arith.negf %in : f32
      %24 = math.exp %23 : f32
      %25 = arith.addf %24, %cst_0 : f32
      %26 = arith.divf %cst_0, %25 : f32
      linalg.yield %26 : f32
    } -> tensor<2x64x352xf32>
    %15 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %14 : tensor<2x64x352xf32>, tensor<2x64x352xf32>) outs(%13 : tensor<2x64x352xf32>) {
    ^bb0(%in: f32, %in_12: f32, %out: f32):
      %23 = arith.mulf %in, %in_12 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x352xf32>
    %transposed_7 = linalg.transpose ins(%cst_2 : tensor<352x128xf32>) outs(%10 : tensor<128x352xf32>) permutation = [1, 0] 
    %16 = linalg.matmul ins(%collapsed, %transposed_7 : tensor<128x128xf32>, tensor<128x352xf32>) outs(%11 : tensor<128x352xf32>) -> tensor<128x352xf32>
    %expanded_8 = tensor.expand_shape %16 [[0, 1], [2]] output_shape [2, 64, 352] : tensor<128x352xf32> into tensor<2x64x352xf32>
    %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%15, %expanded_8 : tensor<2x64x352xf32>, tensor<2x64x352xf32>) outs(%13 : tensor<2x64x352xf32>) {
    ^bb0(%in: f32, %in_12: f32, %out: f32):
      %23 = arith.mulf %in, %in_12 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x352xf32>
    %18 = tensor.empty() : tensor<352x128xf32>
    %transposed_9 = linalg.transpose ins(%cst_1 : tensor<128x352xf32>) outs(%18 : tensor<352x128xf32>) permutation = [1, 0] 
    %collapsed_10 = tensor.collapse_shape %17 [[0, 1], [2]] : tensor<2x64x352xf32> into tensor<128x352xf32>
    %19 = tensor.empty() : tensor<128x128xf32>
    %20 = linalg.fill ins(%cst : f32) outs(%19 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %21 = linalg.matmul ins(%collapsed_10, %transposed_9 : tensor<128x352xf32>, tensor<352x128xf32>) outs(%20 : tensor<128x128xf32>) -> tensor<128x128xf32>
    %expanded_11 = tensor.expand_shape %21 [[0, 1], [2]] output_shape [2, 64, 128] : tensor<128x128xf32> into tensor<2x64x128xf32>
    %22 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %expanded_11 : tensor<2x64x128xf32>, tensor<2x64x128xf32>) outs(%0 : tensor<2x64x128xf32>) {
    ^bb0(%in: f32, %in_12: f32, %out: f32):
      %23 = arith.addf %in, %in_12 : f32
      linalg.yield %23 : f32
    } -> tensor<2x64x128xf32>
    return %22 : tensor<2x64x128xf32>
  }
}
