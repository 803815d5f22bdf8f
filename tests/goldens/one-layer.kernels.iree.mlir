module @mlxcel {
  util.global private @"model.embed_tokens.weight" = #flow.parameter.named<"model"::"model.embed_tokens.weight"> : tensor<320x64xbf16>
  util.global private @"model.layers.0.input_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.0.input_layernorm.weight"> : tensor<64xf32>
  util.global private @"model.layers.0.self_attn.q_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.q_proj.weight"> : tensor<64x64xbf16>
  util.global private @"model.layers.0.self_attn.k_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.k_proj.weight"> : tensor<32x64xbf16>
  util.global private @"model.layers.0.self_attn.v_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.v_proj.weight"> : tensor<32x64xbf16>
  util.global private @"model.layers.0.self_attn.o_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.o_proj.weight"> : tensor<64x64xbf16>
  util.global private @"model.layers.0.post_attention_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.0.post_attention_layernorm.weight"> : tensor<64xf32>
  util.global private @"model.layers.0.mlp.gate_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.gate_proj.weight"> : tensor<96x64xbf16>
  util.global private @"model.layers.0.mlp.up_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.up_proj.weight"> : tensor<96x64xbf16>
  util.global private @"model.layers.0.mlp.down_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.down_proj.weight"> : tensor<64x96xbf16>
  util.global private @"model.norm.weight" = #flow.parameter.named<"model"::"model.norm.weight"> : tensor<64xf32>
  util.global private @"lm_head.weight" = #flow.parameter.named<"model"::"lm_head.weight"> : tensor<320x64xbf16>
  util.global private @"*" = #flow.parameter.named<"model"::"*"> : tensor<36032xi32>
  util.global private mutable @"state.scratch" = dense<-1> : tensor<37056xi32>

  // A forward pass over the tokens of |batch|.
  func.func @step_64(
      %batch: tensor<912xi32>,
      %history: tensor<1xi32> {iree.abi.output = 0 : index},
      %kv: tensor<1x32xbf16> {iree.abi.output = 1 : index},
      %logits: tensor<16x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<16x64xf32> {iree.abi.output = 3 : index},
      %results: tensor<16x48xi32> {iree.abi.output = 4 : index}) -> (tensor<1xi32>, tensor<1x32xbf16>, tensor<16x320xf32>, tensor<16x64xf32>, tensor<16x48xi32>) {
    %position = stablehlo.slice %batch [192:256] : (tensor<912xi32>) -> tensor<64xi32>
    %zero = stablehlo.constant dense<0> : tensor<64xi32>
    %positions = stablehlo.maximum %position, %zero : tensor<64xi32>
    %wanted_tokens = stablehlo.slice %batch [512:528] : (tensor<912xi32>) -> tensor<16xi32>
    %wanted_index = stablehlo.reshape %wanted_tokens : (tensor<16xi32>) -> tensor<16x1xi32>

    // token IDs, and the tiles of attention
    %placed:2 = hal.dispatch.extern "mlx_place"(%batch, %history) : (tensor<912xi32>, tensor<1xi32>) -> (%history, tensor<644xi32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "place1.fatbin"}>] })
      <workgroup_size = [512 : index, 1 : index, 1 : index]>
    %token_ids = stablehlo.slice %placed#1 [580:644] : (tensor<644xi32>) -> tensor<64xi32>
    %model.embed_tokens.weight = util.global.load @"model.embed_tokens.weight" : tensor<320x64xbf16>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %token_ids : (tensor<64xi32>) -> tensor<64x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<320x64xbf16>, tensor<64x1xi32>) -> tensor<64x64xbf16>
    %embedded_f32 = stablehlo.convert %embedded : (tensor<64x64xbf16>) -> tensor<64x64xf32>

    // ---- layer0 ----
    %model.layers.0.input_layernorm.weight = util.global.load @"model.layers.0.input_layernorm.weight" : tensor<64xf32>
    %layer0.square = stablehlo.multiply %embedded_f32, %embedded_f32 : tensor<64x64xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %layer0.width = stablehlo.constant dense<6.400000000e+01> : tensor<64xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<64xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<64xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<64xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.normed = stablehlo.multiply %embedded_f32, %layer0.rms_scales : tensor<64x64xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<64x64xf32>
    %model.layers.0.self_attn.q_proj.weight = util.global.load @"model.layers.0.self_attn.q_proj.weight" : tensor<64x64xbf16>
    %layer0.narrow = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.q:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow, %model.layers.0.self_attn.q_proj.weight) : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> (tensor<64x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear2.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    %model.layers.0.self_attn.k_proj.weight = util.global.load @"model.layers.0.self_attn.k_proj.weight" : tensor<32x64xbf16>
    %layer0.narrow_2 = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.k:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_2, %model.layers.0.self_attn.k_proj.weight) : (tensor<64x64xbf16>, tensor<32x64xbf16>) -> (tensor<64x32xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear3.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    %model.layers.0.self_attn.v_proj.weight = util.global.load @"model.layers.0.self_attn.v_proj.weight" : tensor<32x64xbf16>
    %layer0.narrow_3 = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.v:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_3, %model.layers.0.self_attn.v_proj.weight) : (tensor<64x64xbf16>, tensor<32x64xbf16>) -> (tensor<64x32xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear3.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    %layer0.rope_frequency = stablehlo.constant dense<[1.000000000e+00, 3.162277639e-01, 1.000000015e-01, 3.162277862e-02, 9.999999776e-03, 3.162277862e-03, 1.000000047e-03, 3.162277862e-04]> : tensor<8xf32>
    %layer0.position_f32 = stablehlo.convert %positions : (tensor<64xi32>) -> tensor<64xf32>
    %layer0.rope_position = stablehlo.broadcast_in_dim %layer0.position_f32, dims = [0] : (tensor<64xf32>) -> tensor<64x8xf32>
    %layer0.rope_frequencies = stablehlo.broadcast_in_dim %layer0.rope_frequency, dims = [1] : (tensor<8xf32>) -> tensor<64x8xf32>
    %layer0.rope_angle = stablehlo.multiply %layer0.rope_position, %layer0.rope_frequencies : tensor<64x8xf32>
    %layer0.rotations_per_radian = stablehlo.constant dense<1.591549367e-01> : tensor<64x8xf32>
    %layer0.rotations = stablehlo.multiply %layer0.rope_angle, %layer0.rotations_per_radian : tensor<64x8xf32>
    %layer0.whole_rotations = stablehlo.round_nearest_even %layer0.rotations : tensor<64x8xf32>
    %layer0.two_pi_part = stablehlo.constant dense<6.281250000e+00> : tensor<64x8xf32>
    %layer0.rotation_part = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part : tensor<64x8xf32>
    %layer0.reduced_angle = stablehlo.subtract %layer0.rope_angle, %layer0.rotation_part : tensor<64x8xf32>
    %layer0.two_pi_part_2 = stablehlo.constant dense<1.935005188e-03> : tensor<64x8xf32>
    %layer0.rotation_part_2 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_2 : tensor<64x8xf32>
    %layer0.reduced_angle_2 = stablehlo.subtract %layer0.reduced_angle, %layer0.rotation_part_2 : tensor<64x8xf32>
    %layer0.two_pi_part_3 = stablehlo.constant dense<3.019916051e-07> : tensor<64x8xf32>
    %layer0.rotation_part_3 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_3 : tensor<64x8xf32>
    %layer0.reduced_angle_3 = stablehlo.subtract %layer0.reduced_angle_2, %layer0.rotation_part_3 : tensor<64x8xf32>
    %layer0.rope_cos = stablehlo.cosine %layer0.reduced_angle_3 : tensor<64x8xf32>
    %layer0.rope_sin = stablehlo.sine %layer0.reduced_angle_3 : tensor<64x8xf32>
    %layer0.append_constant = arith.constant 0 : i32
    %layer0.append:2 = hal.dispatch.extern "mlx_append"(%layer0.append_constant, %layer0.q#0, %layer0.k#0, %layer0.v#0, %layer0.rope_cos, %layer0.rope_sin, %batch, %kv) : (i32, tensor<64x64xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>, tensor<912xi32>, tensor<1x32xbf16>) -> (%kv, tensor<64x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 4 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "attention_f324.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index]>
    %layer0.attended_constant = arith.constant 0 : i32
    %layer0.attended:1 = hal.dispatch.extern "mlx_attend"(%layer0.attended_constant, %layer0.append#1, %layer0.append#0, %batch, %placed#1) : (i32, tensor<64x64xf32>, tensor<1x32xbf16>, tensor<912xi32>, tensor<644xi32>) -> (tensor<64x64xbf16>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 2 : index
        %g1 = arith.constant 64 : index
        %g2 = arith.constant 4 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "attention_f324.fatbin"}>] })
      <workgroup_size = [64 : index, 1 : index, 1 : index], workgroup_local_memory = 7872>
    %layer0.attended_2_constant = arith.constant 0 : i32
    %layer0.attended_2:1 = hal.dispatch.extern "mlx_attend"(%layer0.attended_2_constant, %layer0.append#1, %layer0.append#0, %batch, %placed#1, %layer0.attended#0) : (i32, tensor<64x64xf32>, tensor<1x32xbf16>, tensor<912xi32>, tensor<644xi32>, tensor<64x64xbf16>) -> (%layer0.attended#0)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 4 : index
        %g1 = arith.constant 8 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "attention5.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 13312>
    %model.layers.0.self_attn.o_proj.weight = util.global.load @"model.layers.0.self_attn.o_proj.weight" : tensor<64x64xbf16>
    %layer0.after_attn:1 = hal.dispatch.extern "mlx_linear"(%layer0.attended_2#0, %model.layers.0.self_attn.o_proj.weight, %embedded_f32) : (tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32>) -> (tensor<64x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear6.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    %model.layers.0.post_attention_layernorm.weight = util.global.load @"model.layers.0.post_attention_layernorm.weight" : tensor<64xf32>
    %layer0.square_2 = stablehlo.multiply %layer0.after_attn#0, %layer0.after_attn#0 : tensor<64x64xf32>
    %layer0.start_2 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum_2 = stablehlo.reduce(%layer0.square_2 init: %layer0.start_2) applies stablehlo.add across dimensions = [1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %layer0.width_2 = stablehlo.constant dense<6.400000000e+01> : tensor<64xf32>
    %layer0.square_mean_2 = stablehlo.divide %layer0.square_sum_2, %layer0.width_2 : tensor<64xf32>
    %layer0.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer0.mean_plus_eps_2 = stablehlo.add %layer0.square_mean_2, %layer0.eps_2 : tensor<64xf32>
    %layer0.rms_scale_2 = stablehlo.rsqrt %layer0.mean_plus_eps_2 : tensor<64xf32>
    %layer0.rms_scales_2 = stablehlo.broadcast_in_dim %layer0.rms_scale_2, dims = [0] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.normed_2 = stablehlo.multiply %layer0.after_attn#0, %layer0.rms_scales_2 : tensor<64x64xf32>
    %layer0.gains_2 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.mlp_in = stablehlo.multiply %layer0.normed_2, %layer0.gains_2 : tensor<64x64xf32>
    %model.layers.0.mlp.gate_proj.weight = util.global.load @"model.layers.0.mlp.gate_proj.weight" : tensor<96x64xbf16>
    %model.layers.0.mlp.up_proj.weight = util.global.load @"model.layers.0.mlp.up_proj.weight" : tensor<96x64xbf16>
    %layer0.narrow_4 = stablehlo.convert %layer0.mlp_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.act:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_4, %model.layers.0.mlp.gate_proj.weight, %model.layers.0.mlp.up_proj.weight) : (tensor<64x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>) -> (tensor<64x96xbf16>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 2 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear7.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 147552>
    %model.layers.0.mlp.down_proj.weight = util.global.load @"model.layers.0.mlp.down_proj.weight" : tensor<64x96xbf16>
    %layer0.out:1 = hal.dispatch.extern "mlx_linear"(%layer0.act#0, %model.layers.0.mlp.down_proj.weight, %layer0.after_attn#0) : (tensor<64x96xbf16>, tensor<64x96xbf16>, tensor<64x64xf32>) -> (tensor<64x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear8.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    %model.norm.weight = util.global.load @"model.norm.weight" : tensor<64xf32>
    %square = stablehlo.multiply %layer0.out#0, %layer0.out#0 : tensor<64x64xf32>
    %start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start) applies stablehlo.add across dimensions = [1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %width = stablehlo.constant dense<6.400000000e+01> : tensor<64xf32>
    %square_mean = stablehlo.divide %square_sum, %width : tensor<64xf32>
    %eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %mean_plus_eps = stablehlo.add %square_mean, %eps : tensor<64xf32>
    %rms_scale = stablehlo.rsqrt %mean_plus_eps : tensor<64xf32>
    %rms_scales = stablehlo.broadcast_in_dim %rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x64xf32>
    %normed = stablehlo.multiply %layer0.out#0, %rms_scales : tensor<64x64xf32>
    %gains = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<64xf32>) -> tensor<64x64xf32>
    %final = stablehlo.multiply %normed, %gains : tensor<64x64xf32>

    // hidden states of the tokens whose logits are wanted
    %wanted:2 = hal.dispatch.extern "mlx_pick"(%final, %batch, %hidden) : (tensor<64x64xf32>, tensor<912xi32>, tensor<16x64xf32>) -> (%hidden, tensor<16x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 16 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "place9.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index]>
    %lm_head.weight = util.global.load @"lm_head.weight" : tensor<320x64xbf16>
    %narrow = stablehlo.convert %wanted#1 : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %logits_2:1 = hal.dispatch.extern "mlx_linear"(%narrow, %lm_head.weight, %logits) : (tensor<16x64xbf16>, tensor<320x64xbf16>, tensor<16x320xf32>) -> (%logits)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 5 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear10.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>

    // sampling
    %sampled:2 = hal.dispatch.extern "mlx_sample"(%batch, %logits_2#0, %placed#0, %results) : (tensor<912xi32>, tensor<16x320xf32>, tensor<1xi32>, tensor<16x48xi32>) -> (%placed#0, %results)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 16 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "sample11.fatbin"}>] })
      <workgroup_size = [1024 : index, 1 : index, 1 : index]>
    return %sampled#0, %layer0.append#0, %logits_2#0, %wanted#0, %sampled#1 : tensor<1xi32>, tensor<1x32xbf16>, tensor<16x320xf32>, tensor<16x64xf32>, tensor<16x48xi32>
  }

  // Decodes tokens of one sequence, one after the other.
  func.func @burst(
      %batch: tensor<96xi32>,
      %history: tensor<1xi32> {iree.abi.output = 0 : index},
      %kv: tensor<1x32xbf16> {iree.abi.output = 1 : index},
      %logits: tensor<1x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<1x64xf32> {iree.abi.output = 3 : index},
      %results: tensor<1x48xi32> {iree.abi.output = 4 : index}) -> (tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.scratch = util.global.load @"state.scratch" : tensor<37056xi32>
    %decoded:6 = hal.dispatch.extern "mlx_decode"(%all_weights, %batch, %history, %kv, %logits, %hidden, %results, %state.scratch) : (tensor<36032xi32>, tensor<96xi32>, tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>, tensor<37056xi32>) -> (%history, %kv, %logits, %hidden, %results, %state.scratch)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode12.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %decoded#5, @"state.scratch" : tensor<37056xi32>
    return %decoded#0, %decoded#1, %decoded#2, %decoded#3, %decoded#4 : tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>
  }

  // A forward pass over one token.
  func.func @step_1(
      %batch: tensor<96xi32>,
      %history: tensor<1xi32> {iree.abi.output = 0 : index},
      %kv: tensor<1x32xbf16> {iree.abi.output = 1 : index},
      %logits: tensor<1x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<1x64xf32> {iree.abi.output = 3 : index},
      %results: tensor<1x48xi32> {iree.abi.output = 4 : index}) -> (tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.scratch = util.global.load @"state.scratch" : tensor<37056xi32>
    %decoded:6 = hal.dispatch.extern "mlx_decode"(%all_weights, %batch, %history, %kv, %logits, %hidden, %results, %state.scratch) : (tensor<36032xi32>, tensor<96xi32>, tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>, tensor<37056xi32>) -> (%history, %kv, %logits, %hidden, %results, %state.scratch)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode12.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %decoded#5, @"state.scratch" : tensor<37056xi32>

    // sampling
    %sampled:2 = hal.dispatch.extern "mlx_sample"(%batch, %decoded#2, %decoded#0, %decoded#4) : (tensor<96xi32>, tensor<1x320xf32>, tensor<1xi32>, tensor<1x48xi32>) -> (%decoded#0, %decoded#4)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "sample11.fatbin"}>] })
      <workgroup_size = [1024 : index, 1 : index, 1 : index]>
    return %sampled#0, %decoded#1, %decoded#2, %decoded#3, %sampled#1 : tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>
  }
}
