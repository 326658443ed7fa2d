module @jit_layers attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=2]> {stablehlo.mesh = {axes = [{name = "data", size = 2 : i64}, {name = "model", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<32x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %arg1: tensor<6x128x352xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"model"}]>}, %arg2: tensor<6x352x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}, {}]>}) -> (tensor<32x128xbf16> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:4 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %arg2, %iterArg_1 = %c, %iterArg_2 = %arg0) : tensor<6x128x352xbf16>, tensor<6x352x128xbf16>, tensor<i32>, tensor<32x128xbf16>
    cond {
      %c_3 = stablehlo.constant dense<6> : tensor<i32>
      %1 = stablehlo.compare LT, %iterArg_1, %c_3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_1) : (tensor<6x128x352xbf16>, tensor<i32>) -> tensor<128x352xbf16>
      %2 = func.call @dynamic_index_in_dim_0(%iterArg_0, %iterArg_1) : (tensor<6x352x128xbf16>, tensor<i32>) -> tensor<352x128xbf16>
      %3 = func.call @closed_call(%iterArg_2, %1, %2) : (tensor<32x128xbf16>, tensor<128x352xbf16>, tensor<352x128xbf16>) -> tensor<32x128xbf16>
      %c_3 = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %iterArg_1, %c_3 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_0, %4, %3 : tensor<6x128x352xbf16>, tensor<6x352x128xbf16>, tensor<i32>, tensor<32x128xbf16>
    }
    return %0#3 : tensor<32x128xbf16>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<6x128x352xbf16>, %arg1: tensor<i32>) -> tensor<128x352xbf16> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 128, 352] : (tensor<6x128x352xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x128x352xbf16>
    %1 = stablehlo.reshape %0 : (tensor<1x128x352xbf16>) -> tensor<128x352xbf16>
    return %1 : tensor<128x352xbf16>
  }
  func.func private @dynamic_index_in_dim_0(%arg0: tensor<6x352x128xbf16>, %arg1: tensor<i32>) -> tensor<352x128xbf16> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 352, 128] : (tensor<6x352x128xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x352x128xbf16>
    %1 = stablehlo.reshape %0 : (tensor<1x352x128xbf16>) -> tensor<352x128xbf16>
    return %1 : tensor<352x128xbf16>
  }
  func.func private @closed_call(%arg0: tensor<32x128xbf16>, %arg1: tensor<128x352xbf16>, %arg2: tensor<352x128xbf16>) -> tensor<32x128xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x128xbf16>, tensor<128x352xbf16>) -> tensor<32x352xbf16>
    %1 = call @silu(%0) : (tensor<32x352xbf16>) -> tensor<32x352xbf16>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x352xbf16>, tensor<352x128xbf16>) -> tensor<32x128xbf16>
    %3 = stablehlo.add %arg0, %2 : tensor<32x128xbf16>
    return %3 : tensor<32x128xbf16>
  }
  func.func private @silu(%arg0: tensor<32x352xbf16>) -> tensor<32x352xbf16> {
    %0 = stablehlo.negate %arg0 : tensor<32x352xbf16>
    %1 = stablehlo.exponential %0 : tensor<32x352xbf16>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<32x352xbf16>
    %3 = stablehlo.add %2, %1 : tensor<32x352xbf16>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<bf16>) -> tensor<32x352xbf16>
    %5 = stablehlo.divide %4, %3 : tensor<32x352xbf16>
    %6 = stablehlo.multiply %arg0, %5 : tensor<32x352xbf16>
    return %6 : tensor<32x352xbf16>
  }
}
