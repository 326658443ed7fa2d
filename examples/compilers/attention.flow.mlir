module @jit_attention attributes {stream.affinity.default = #hal.device.affinity<@__device_0>} {
  util.global private @__device_0 = #hal.device.target<"local", ["cpu"
  flow.executable private @main_dispatch_0 {
    flow.executable.export public @main_dispatch_0_reduction_128x128_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_0_reduction_128x128_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %cst_0 = arith.constant 1.280000e+02 : f32
        %cst_1 = arith.constant 9.99999974E-6 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0], sizes = [128], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128xf32>> -> tensor<128xf32>
        %2 = tensor.empty() : tensor<128xf32>
        %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<128xf32>) -> tensor<128xf32>
        %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%0 : tensor<128x128xf32>) outs(%3 : tensor<128xf32>) {
        ^bb0(%in: f32, %out: f32):
          %7 = arith.mulf %in, %in : f32
          %8 = arith.addf %out, %7 : f32
          linalg.yield %8 : f32
        } -> tensor<128xf32>
        %5 = tensor.empty() : tensor<128x128xf32>
        %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%0, %4, %1 : tensor<128x128xf32>, tensor<128xf32>, tensor<128xf32>) outs(%5 : tensor<128x128xf32>) {
        ^bb0(%in: f32, %in_2: f32, %in_3: f32, %out: f32):
          %7 = arith.divf %in_2, %cst_0 : f32
          %8 = arith.addf %7, %cst_1 : f32
          %9 = math.rsqrt %8 : f32
          %10 = arith.mulf %in, %9 : f32
          %11 = arith.mulf %10, %in_3 : f32
          linalg.yield %11 : f32
        } -> tensor<128x128xf32>
        iree_tensor_ext.dispatch.tensor.store %6, %arg2, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : tensor<128x128xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_1 {
    flow.executable.export public @main_dispatch_1_matmul_128x128x128_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_1_matmul_128x128x128_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %2 = tensor.empty() : tensor<128x128xf32>
        %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<128x128xf32>) -> tensor<128x128xf32>
        %4 = linalg.matmul ins(%0, %1 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%3 : tensor<128x128xf32>) -> tensor<128x128xf32>
        iree_tensor_ext.dispatch.tensor.store %4, %arg2, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : tensor<128x128xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_2 {
    flow.executable.export public @main_dispatch_2_transpose_2x64x4x32_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_2_transpose_2x64x4x32_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x64x4x32xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x4x64x32xf32>>) {
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0, 0], sizes = [2, 64, 4, 32], strides = [1, 1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x64x4x32xf32>> -> tensor<2x64x4x32xf32>
        %1 = tensor.empty() : tensor<2x4x64x32xf32>
        %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%0 : tensor<2x64x4x32xf32>) outs(%1 : tensor<2x4x64x32xf32>) {
        ^bb0(%in: f32, %out: f32):
          linalg.yield %in : f32
        } -> tensor<2x4x64x32xf32>
        iree_tensor_ext.dispatch.tensor.store %2, %arg1, offsets = [0, 0, 0, 0], sizes = [2, 4, 64, 32], strides = [1, 1, 1, 1] : tensor<2x4x64x32xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x4x64x32xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_6 {
    flow.executable.export public @main_dispatch_6_transpose_2x64x128_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_6_transpose_2x64x128_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x64x128xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x128x64xf32>>) {
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [2, 64, 128], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x64x128xf32>> -> tensor<2x64x128xf32>
        %1 = tensor.empty() : tensor<2x128x64xf32>
        %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d2, d1)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%0 : tensor<2x64x128xf32>) outs(%1 : tensor<2x128x64xf32>) {
        ^bb0(%in: f32, %out: f32):
          linalg.yield %in : f32
        } -> tensor<2x128x64xf32>
        iree_tensor_ext.dispatch.tensor.store %2, %arg1, offsets = [0, 0, 0], sizes = [2, 128, 64], strides = [1, 1, 1] : tensor<2x128x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x128x64xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_7 {
    flow.executable.export public @main_dispatch_7_batch_matmul_8x64x64x32_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_7_batch_matmul_8x64x64x32_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x32xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x32x64xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x64x64xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %cst_0 = arith.constant 0.176776692 : f32
        %cst_1 = arith.constant -1.000000e+09 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [8, 64, 32], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x32xf32>> -> tensor<8x64x32xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0, 0], sizes = [8, 32, 64], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x32x64xf32>> -> tensor<8x32x64xf32>
        %2 = tensor.empty() : tensor<8x64x64xf32>
        %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
        %4 = linalg.batch_matmul ins(%0, %1 : tensor<8x64x32xf32>, tensor<8x32x64xf32>) outs(%3 : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
        %5 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<8x64x64xf32>) outs(%2 : tensor<8x64x64xf32>) {
        ^bb0(%in: f32, %out: f32):
          %6 = linalg.index 1 : index
          %7 = linalg.index 2 : index
          %8 = arith.mulf %in, %cst_0 : f32
          %9 = arith.index_cast %7 : index to i32
          %10 = arith.index_cast %6 : index to i32
          %11 = arith.cmpi sge, %10, %9 : i32
          %12 = arith.select %11, %8, %cst_1 : f32
          linalg.yield %12 : f32
        } -> tensor<8x64x64xf32>
        iree_tensor_ext.dispatch.tensor.store %5, %arg2, offsets = [0, 0, 0], sizes = [8, 64, 64], strides = [1, 1, 1] : tensor<8x64x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x64x64xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_8 {
    flow.executable.export public @main_dispatch_8_softmax_2x4x64x64xf32_dispatch_tensor_store workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_8_softmax_2x4x64x64xf32_dispatch_tensor_store(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x4x64x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x4x64x64xf32>>) {
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0, 0], sizes = [2, 4, 64, 64], strides = [1, 1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x4x64x64xf32>> -> tensor<2x4x64x64xf32>
        %1 = tensor.empty() : tensor<2x4x64x64xf32>
        %2 = linalg.softmax dimension(3) ins(%0 : tensor<2x4x64x64xf32>) outs(%1 : tensor<2x4x64x64xf32>) -> tensor<2x4x64x64xf32>
        iree_tensor_ext.dispatch.tensor.store %2, %arg1, offsets = [0, 0, 0, 0], sizes = [2, 4, 64, 64], strides = [1, 1, 1, 1] : tensor<2x4x64x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x4x64x64xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_9 {
    flow.executable.export public @main_dispatch_9_batch_matmul_8x64x32x64_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_9_batch_matmul_8x64x32x64_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x32xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x64x32xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [8, 64, 64], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x64xf32>> -> tensor<8x64x64xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0, 0], sizes = [8, 64, 32], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64x32xf32>> -> tensor<8x64x32xf32>
        %2 = tensor.empty() : tensor<8x64x32xf32>
        %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
        %4 = linalg.batch_matmul ins(%0, %1 : tensor<8x64x64xf32>, tensor<8x64x32xf32>) outs(%3 : tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
        iree_tensor_ext.dispatch.tensor.store %4, %arg2, offsets = [0, 0, 0], sizes = [8, 64, 32], strides = [1, 1, 1] : tensor<8x64x32xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x64x32xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_10 {
    flow.executable.export public @main_dispatch_10_transpose_2x4x64x32_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_10_transpose_2x4x64x32_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x4x64x32xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x64x4x32xf32>>) {
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0, 0], sizes = [2, 4, 64, 32], strides = [1, 1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x4x64x32xf32>> -> tensor<2x4x64x32xf32>
        %1 = tensor.empty() : tensor<2x64x4x32xf32>
        %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%0 : tensor<2x4x64x32xf32>) outs(%1 : tensor<2x64x4x32xf32>) {
        ^bb0(%in: f32, %out: f32):
          linalg.yield %in : f32
        } -> tensor<2x64x4x32xf32>
        iree_tensor_ext.dispatch.tensor.store %2, %arg1, offsets = [0, 0, 0, 0], sizes = [2, 64, 4, 32], strides = [1, 1, 1, 1] : tensor<2x64x4x32xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<2x64x4x32xf32>>
        return
      }
    }
  }
  flow.executable private @main_dispatch_11 {
    flow.executable.export public @main_dispatch_11_matmul_128x128x128_f32 workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @main_dispatch_11_matmul_128x128x128_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>>, %arg3: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %2 = iree_tensor_ext.dispatch.tensor.load %arg2, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x128xf32>> -> tensor<128x128xf32>
        %3 = tensor.empty() : tensor<128x128xf32>
        %4 = linalg.fill ins(%cst : f32) outs(%3 : tensor<128x128xf32>) -> tensor<128x128xf32>
        %5 = linalg.matmul ins(%0, %1 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%4 : tensor<128x128xf32>) -> tensor<128x128xf32>
        %6 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%2, %5 : tensor<128x128xf32>, tensor<128x128xf32>) outs(%3 : tensor<128x128xf32>) {
        ^bb0(%in: f32, %in_0: f32, %out: f32):
          %7 = arith.addf %in, %in_0 : f32
          linalg.yield %7 : f32
        } -> tensor<128x128xf32>
        iree_tensor_ext.dispatch.tensor.store %6, %arg3, offsets = [0, 0], sizes = [128, 128], strides = [1, 1] : tensor<128x128xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x128xf32>>
        return
      }
    }
  }
  util.func public @main(%arg0: !hal.buffer_view, %arg1: !hal.buffer_view, %arg2: !hal.buffer_view, %arg3: !hal.buffer_view, %arg4: !hal.buffer_view, %arg5: !hal.buffer_view) -> !hal.buffer_view attributes {iree.abi.stub, iree.reflection = {iree.abi.declaration = "sync func @main(%input0: tensor<2x64x128xf32>, %input1: tensor<128xf32>, %input2: tensor<128x128xf32>, %input3: tensor<128x128xf32>, %input4: tensor<128x128xf32>, %input5: tensor<128x128xf32>) -> (%output0: tensor<2x64x128xf32>)"}} {
    %0 = hal.tensor.import %arg0 "input0" : !hal.buffer_view -> tensor<2x64x128xf32>
    %1 = hal.tensor.import %arg1 "input1" : !hal.buffer_view -> tensor<128xf32>
    %2 = hal.tensor.import %arg2 "input2" : !hal.buffer_view -> tensor<128x128xf32>
    %3 = hal.tensor.import %arg3 "input3" : !hal.buffer_view -> tensor<128x128xf32>
    %4 = hal.tensor.import %arg4 "input4" : !hal.buffer_view -> tensor<128x128xf32>
    %5 = hal.tensor.import %arg5 "input5" : !hal.buffer_view -> tensor<128x128xf32>
    %6 = flow.tensor.reshape %0 : tensor<2x64x128xf32> -> tensor<128x128xf32>
    %7 = flow.dispatch @main_dispatch_0::@main_dispatch_0_reduction_128x128_f32(%6, %1) : (tensor<128x128xf32>, tensor<128xf32>) -> tensor<128x128xf32>
    %8 = flow.dispatch @main_dispatch_1::@main_dispatch_1_matmul_128x128x128_f32(%7, %2) : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %9 = flow.tensor.reshape %8 : tensor<128x128xf32> -> tensor<2x64x4x32xf32>
    %10 = flow.dispatch @main_dispatch_2::@main_dispatch_2_transpose_2x64x4x32_f32(%9) : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %11 = flow.dispatch @main_dispatch_1::@main_dispatch_1_matmul_128x128x128_f32(%7, %3) : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %12 = flow.dispatch @main_dispatch_1::@main_dispatch_1_matmul_128x128x128_f32(%7, %4) : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %13 = flow.tensor.reshape %12 : tensor<128x128xf32> -> tensor<2x64x4x32xf32>
    %14 = flow.dispatch @main_dispatch_2::@main_dispatch_2_transpose_2x64x4x32_f32(%13) : (tensor<2x64x4x32xf32>) -> tensor<2x4x64x32xf32>
    %15 = flow.tensor.reshape %11 : tensor<128x128xf32> -> tensor<2x64x128xf32>
    %16 = flow.dispatch @main_dispatch_6::@main_dispatch_6_transpose_2x64x128_f32(%15) : (tensor<2x64x128xf32>) -> tensor<2x128x64xf32>
    %17 = flow.tensor.reshape %10 : tensor<2x4x64x32xf32> -> tensor<8x64x32xf32>
    %18 = flow.tensor.reshape %16 : tensor<2x128x64xf32> -> tensor<8x32x64xf32>
    %19 = flow.dispatch @main_dispatch_7::@main_dispatch_7_batch_matmul_8x64x64x32_f32(%17, %18) : (tensor<8x64x32xf32>, tensor<8x32x64xf32>) -> tensor<8x64x64xf32>
    %20 = flow.tensor.reshape %19 : tensor<8x64x64xf32> -> tensor<2x4x64x64xf32>
    %21 = flow.dispatch @main_dispatch_8::@main_dispatch_8_softmax_2x4x64x64xf32_dispatch_tensor_store(%20) : (tensor<2x4x64x64xf32>) -> tensor<2x4x64x64xf32>
    %22 = flow.tensor.reshape %21 : tensor<2x4x64x64xf32> -> tensor<8x64x64xf32>
    %23 = flow.tensor.reshape %14 : tensor<2x4x64x32xf32> -> tensor<8x64x32xf32>
    %24 = flow.dispatch @main_dispatch_9::@main_dispatch_9_batch_matmul_8x64x32x64_f32(%22, %23) : (tensor<8x64x64xf32>, tensor<8x64x32xf32>) -> tensor<8x64x32xf32>
    %25 = flow.tensor.reshape %24 : tensor<8x64x32xf32> -> tensor<2x4x64x32xf32>
    %26 = flow.dispatch @main_dispatch_10::@main_dispatch_10_transpose_2x4x64x32_f32(%25) : (tensor<2x4x64x32xf32>) -> tensor<2x64x4x32xf32>
    %27 = flow.tensor.reshape %26 : tensor<2x64x4x32xf32> -> tensor<128x128xf32>
    %28 = flow.dispatch @main_dispatch_11::@main_dispatch_11_matmul_128x128x128_f32(%27, %5, %6) : (tensor<128x128xf32>, tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %29 = flow.tensor.reshape %28 : tensor<128x128xf32> -> tensor<2x64x128xf32>
    %30 = hal.tensor.export %29 "output0" : tensor<2x64x128xf32> -> !hal.buffer_view
    util.return %30 : !hal.buffer_view
  }
}
