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
  util.global private mutable @"state.kv" = dense<0x000D> : tensor<2048xbf16>
  util.global private mutable @"state.token" = dense<14> : tensor<1xi32>
  util.global private mutable @"state.position" = dense<15> : tensor<1xi32>
  util.global private mutable @"state.logits" = dense<16.0> : tensor<1x320xf32>
  util.global private @"*" = #flow.parameter.named<"model"::"*"> : tensor<36032xi32>
  util.global private mutable @"state.scratch" = dense<-1> : tensor<3456xi32>

  // Reads count[s] tokens of each sequence s, from position start[s] on. A sequence with count 0 keeps its state.
  func.func @prefill_16(
      %tokens: tensor<1x16xi32>,
      %start: tensor<1xi32>,
      %count: tensor<1xi32>,
      %pages: tensor<1x1xi32>) -> (tensor<1xi32>) {
    %nth_token = stablehlo.iota dim = 1 : tensor<1x16xi32>
    %starts = stablehlo.broadcast_in_dim %start, dims = [0] : (tensor<1xi32>) -> tensor<1x16xi32>
    %counts = stablehlo.broadcast_in_dim %count, dims = [0] : (tensor<1xi32>) -> tensor<1x16xi32>
    %valid = stablehlo.compare LT, %nth_token, %counts : (tensor<1x16xi32>, tensor<1x16xi32>) -> tensor<1x16xi1>
    %position = stablehlo.add %starts, %nth_token : tensor<1x16xi32>
    %positions = stablehlo.reshape %position : (tensor<1x16xi32>) -> tensor<16xi32>
    %flat_tokens = stablehlo.reshape %tokens : (tensor<1x16xi32>) -> tensor<16xi32>

    // index of each sequence's last token
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %last = stablehlo.subtract %count, %one : tensor<1xi32>
    %tokens_per_sequence = stablehlo.constant dense<16> : tensor<1xi32>
    %sequence = stablehlo.iota dim = 0 : tensor<1xi32>
    %sequence_start = stablehlo.multiply %sequence, %tokens_per_sequence : tensor<1xi32>
    %last_token = stablehlo.add %sequence_start, %last : tensor<1xi32>
    %last_index = stablehlo.reshape %last_token : (tensor<1xi32>) -> tensor<1x1xi32>
    %model.embed_tokens.weight = util.global.load @"model.embed_tokens.weight" : tensor<320x64xbf16>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %flat_tokens : (tensor<16xi32>) -> tensor<16x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<320x64xbf16>, tensor<16x1xi32>) -> tensor<16x64xbf16>
    %embedded_f32 = stablehlo.convert %embedded : (tensor<16x64xbf16>) -> tensor<16x64xf32>

    // ---- layer0 ----
    %model.layers.0.input_layernorm.weight = util.global.load @"model.layers.0.input_layernorm.weight" : tensor<64xf32>
    %layer0.square = stablehlo.multiply %embedded_f32, %embedded_f32 : tensor<16x64xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<16x64xf32>, tensor<f32>) -> tensor<16xf32>
    %layer0.width = stablehlo.constant dense<6.400000000e+01> : tensor<16xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<16xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<16xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<16xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<16xf32>) -> tensor<16x64xf32>
    %layer0.normed = stablehlo.multiply %embedded_f32, %layer0.rms_scales : tensor<16x64xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<64xf32>) -> tensor<16x64xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<16x64xf32>
    %model.layers.0.self_attn.q_proj.weight = util.global.load @"model.layers.0.self_attn.q_proj.weight" : tensor<64x64xbf16>
    %layer0.narrow = stablehlo.convert %layer0.attn_in : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %layer0.q:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow, %model.layers.0.self_attn.q_proj.weight) : (tensor<16x64xbf16>, tensor<64x64xbf16>) -> (tensor<16x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear1.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    %model.layers.0.self_attn.k_proj.weight = util.global.load @"model.layers.0.self_attn.k_proj.weight" : tensor<32x64xbf16>
    %layer0.narrow_2 = stablehlo.convert %layer0.attn_in : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %layer0.k:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_2, %model.layers.0.self_attn.k_proj.weight) : (tensor<16x64xbf16>, tensor<32x64xbf16>) -> (tensor<16x32xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear2.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    %model.layers.0.self_attn.v_proj.weight = util.global.load @"model.layers.0.self_attn.v_proj.weight" : tensor<32x64xbf16>
    %layer0.narrow_3 = stablehlo.convert %layer0.attn_in : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %layer0.v:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_3, %model.layers.0.self_attn.v_proj.weight) : (tensor<16x64xbf16>, tensor<32x64xbf16>) -> (tensor<16x32xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear2.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    %layer0.rope_frequency = stablehlo.constant dense<[1.000000000e+00, 3.162277639e-01, 1.000000015e-01, 3.162277862e-02, 9.999999776e-03, 3.162277862e-03, 1.000000047e-03, 3.162277862e-04]> : tensor<8xf32>
    %layer0.position_f32 = stablehlo.convert %positions : (tensor<16xi32>) -> tensor<16xf32>
    %layer0.rope_position = stablehlo.broadcast_in_dim %layer0.position_f32, dims = [0] : (tensor<16xf32>) -> tensor<16x8xf32>
    %layer0.rope_frequencies = stablehlo.broadcast_in_dim %layer0.rope_frequency, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
    %layer0.rope_angle = stablehlo.multiply %layer0.rope_position, %layer0.rope_frequencies : tensor<16x8xf32>
    %layer0.rotations_per_radian = stablehlo.constant dense<1.591549367e-01> : tensor<16x8xf32>
    %layer0.rotations = stablehlo.multiply %layer0.rope_angle, %layer0.rotations_per_radian : tensor<16x8xf32>
    %layer0.whole_rotations = stablehlo.round_nearest_even %layer0.rotations : tensor<16x8xf32>
    %layer0.two_pi_part = stablehlo.constant dense<6.281250000e+00> : tensor<16x8xf32>
    %layer0.rotation_part = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part : tensor<16x8xf32>
    %layer0.reduced_angle = stablehlo.subtract %layer0.rope_angle, %layer0.rotation_part : tensor<16x8xf32>
    %layer0.two_pi_part_2 = stablehlo.constant dense<1.935005188e-03> : tensor<16x8xf32>
    %layer0.rotation_part_2 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_2 : tensor<16x8xf32>
    %layer0.reduced_angle_2 = stablehlo.subtract %layer0.reduced_angle, %layer0.rotation_part_2 : tensor<16x8xf32>
    %layer0.two_pi_part_3 = stablehlo.constant dense<3.019916051e-07> : tensor<16x8xf32>
    %layer0.rotation_part_3 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_3 : tensor<16x8xf32>
    %layer0.reduced_angle_3 = stablehlo.subtract %layer0.reduced_angle_2, %layer0.rotation_part_3 : tensor<16x8xf32>
    %layer0.rope_cos = stablehlo.cosine %layer0.reduced_angle_3 : tensor<16x8xf32>
    %layer0.rope_sin = stablehlo.sine %layer0.reduced_angle_3 : tensor<16x8xf32>
    %state.kv = util.global.load @"state.kv" : tensor<2048xbf16>
    %layer0.append_constant = arith.constant 0 : i32
    %layer0.append:2 = hal.dispatch.extern "mlx_append"(%layer0.append_constant, %layer0.q#0, %layer0.k#0, %layer0.v#0, %layer0.rope_cos, %layer0.rope_sin, %start, %count, %pages, %state.kv) : (i32, tensor<16x64xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1x1xi32>, tensor<2048xbf16>) -> (%state.kv, tensor<16x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "attention3.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index]>
    util.global.store %layer0.append#0, @"state.kv" : tensor<2048xbf16>
    %layer0.attended_constant = arith.constant 0 : i32
    %layer0.attended:1 = hal.dispatch.extern "mlx_attend"(%layer0.attended_constant, %layer0.append#1, %layer0.append#0, %start, %count, %pages) : (i32, tensor<16x64xf32>, tensor<2048xbf16>, tensor<1xi32>, tensor<1xi32>, tensor<1x1xi32>) -> (tensor<16x64xbf16>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 4 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 8 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "attention3.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 25216>
    %model.layers.0.self_attn.o_proj.weight = util.global.load @"model.layers.0.self_attn.o_proj.weight" : tensor<64x64xbf16>
    %layer0.after_attn:1 = hal.dispatch.extern "mlx_linear"(%layer0.attended#0, %model.layers.0.self_attn.o_proj.weight, %embedded_f32) : (tensor<16x64xbf16>, tensor<64x64xbf16>, tensor<16x64xf32>) -> (tensor<16x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear4.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    %model.layers.0.post_attention_layernorm.weight = util.global.load @"model.layers.0.post_attention_layernorm.weight" : tensor<64xf32>
    %layer0.square_2 = stablehlo.multiply %layer0.after_attn#0, %layer0.after_attn#0 : tensor<16x64xf32>
    %layer0.start_2 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum_2 = stablehlo.reduce(%layer0.square_2 init: %layer0.start_2) applies stablehlo.add across dimensions = [1] : (tensor<16x64xf32>, tensor<f32>) -> tensor<16xf32>
    %layer0.width_2 = stablehlo.constant dense<6.400000000e+01> : tensor<16xf32>
    %layer0.square_mean_2 = stablehlo.divide %layer0.square_sum_2, %layer0.width_2 : tensor<16xf32>
    %layer0.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer0.mean_plus_eps_2 = stablehlo.add %layer0.square_mean_2, %layer0.eps_2 : tensor<16xf32>
    %layer0.rms_scale_2 = stablehlo.rsqrt %layer0.mean_plus_eps_2 : tensor<16xf32>
    %layer0.rms_scales_2 = stablehlo.broadcast_in_dim %layer0.rms_scale_2, dims = [0] : (tensor<16xf32>) -> tensor<16x64xf32>
    %layer0.normed_2 = stablehlo.multiply %layer0.after_attn#0, %layer0.rms_scales_2 : tensor<16x64xf32>
    %layer0.gains_2 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<64xf32>) -> tensor<16x64xf32>
    %layer0.mlp_in = stablehlo.multiply %layer0.normed_2, %layer0.gains_2 : tensor<16x64xf32>
    %model.layers.0.mlp.gate_proj.weight = util.global.load @"model.layers.0.mlp.gate_proj.weight" : tensor<96x64xbf16>
    %model.layers.0.mlp.up_proj.weight = util.global.load @"model.layers.0.mlp.up_proj.weight" : tensor<96x64xbf16>
    %layer0.narrow_4 = stablehlo.convert %layer0.mlp_in : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %layer0.act:1 = hal.dispatch.extern "mlx_linear"(%layer0.narrow_4, %model.layers.0.mlp.gate_proj.weight, %model.layers.0.mlp.up_proj.weight) : (tensor<16x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>) -> (tensor<16x96xbf16>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 2 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear5.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 110688>
    %model.layers.0.mlp.down_proj.weight = util.global.load @"model.layers.0.mlp.down_proj.weight" : tensor<64x96xbf16>
    %layer0.out:1 = hal.dispatch.extern "mlx_linear"(%layer0.act#0, %model.layers.0.mlp.down_proj.weight, %layer0.after_attn#0) : (tensor<16x96xbf16>, tensor<64x96xbf16>, tensor<16x64xf32>) -> (tensor<16x64xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 1 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear6.fatbin"}>] })
      <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    %model.norm.weight = util.global.load @"model.norm.weight" : tensor<64xf32>
    %square = stablehlo.multiply %layer0.out#0, %layer0.out#0 : tensor<16x64xf32>
    %start_2 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start_2) applies stablehlo.add across dimensions = [1] : (tensor<16x64xf32>, tensor<f32>) -> tensor<16xf32>
    %width = stablehlo.constant dense<6.400000000e+01> : tensor<16xf32>
    %square_mean = stablehlo.divide %square_sum, %width : tensor<16xf32>
    %eps = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %mean_plus_eps = stablehlo.add %square_mean, %eps : tensor<16xf32>
    %rms_scale = stablehlo.rsqrt %mean_plus_eps : tensor<16xf32>
    %rms_scales = stablehlo.broadcast_in_dim %rms_scale, dims = [0] : (tensor<16xf32>) -> tensor<16x64xf32>
    %normed = stablehlo.multiply %layer0.out#0, %rms_scales : tensor<16x64xf32>
    %gains = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<64xf32>) -> tensor<16x64xf32>
    %final = stablehlo.multiply %normed, %gains : tensor<16x64xf32>

    // hidden states of the tokens whose logits are wanted
    %wanted = "stablehlo.gather"(%final, %last_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<16x64xf32>, tensor<1x1xi32>) -> tensor<1x64xf32>
    %lm_head.weight = util.global.load @"lm_head.weight" : tensor<320x64xbf16>
    %logits:1 = hal.dispatch.extern "mlx_gemv"(%wanted, %lm_head.weight) : (tensor<1x64xf32>, tensor<320x64xbf16>) -> (tensor<1x320xf32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 40 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "linear7.fatbin"}>] })
      <workgroup_size = [256 : index, 1 : index, 1 : index]>
    %zero = stablehlo.constant dense<0> : tensor<1xi32>
    %is_active = stablehlo.compare GT, %count, %zero : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %end = stablehlo.add %start, %count : tensor<1xi32>

    // the next token, and the state of the active sequences
    %start_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %largest = stablehlo.reduce(%logits#0 init: %start_3) applies stablehlo.maximum across dimensions = [1] : (tensor<1x320xf32>, tensor<f32>) -> tensor<1xf32>
    %largest_wide = stablehlo.broadcast_in_dim %largest, dims = [0] : (tensor<1xf32>) -> tensor<1x320xf32>
    %is_largest = stablehlo.compare EQ, %logits#0, %largest_wide : (tensor<1x320xf32>, tensor<1x320xf32>) -> tensor<1x320xi1>
    %index = stablehlo.iota dim = 1 : tensor<1x320xi32>
    %index_f32 = stablehlo.convert %index : (tensor<1x320xi32>) -> tensor<1x320xf32>
    %last_index_2 = stablehlo.constant dense<3.190000000e+02> : tensor<1x320xf32>
    %from_end = stablehlo.subtract %last_index_2, %index_f32 : tensor<1x320xf32>
    %no_index = stablehlo.constant dense<0.000000000e+00> : tensor<1x320xf32>
    %candidates = stablehlo.select %is_largest, %from_end, %no_index : tensor<1x320xi1>, tensor<1x320xf32>
    %start_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %furthest = stablehlo.reduce(%candidates init: %start_4) applies stablehlo.maximum across dimensions = [1] : (tensor<1x320xf32>, tensor<f32>) -> tensor<1xf32>
    %last_place = stablehlo.constant dense<3.190000000e+02> : tensor<1xf32>
    %first_largest = stablehlo.subtract %last_place, %furthest : tensor<1xf32>
    %next = stablehlo.convert %first_largest : (tensor<1xf32>) -> tensor<1xi32>
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %new_token = stablehlo.select %is_active, %next, %state.token : tensor<1xi1>, tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %new_position = stablehlo.select %is_active, %end, %state.position : tensor<1xi1>, tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %is_active_wide = stablehlo.broadcast_in_dim %is_active, dims = [0] : (tensor<1xi1>) -> tensor<1x320xi1>
    %new_logits = stablehlo.select %is_active_wide, %logits#0, %state.logits : tensor<1x320xi1>, tensor<1x320xf32>
    util.global.store %new_token, @"state.token" : tensor<1xi32>
    util.global.store %new_position, @"state.position" : tensor<1xi32>
    util.global.store %new_logits, @"state.logits" : tensor<1x320xf32>
    return %new_token : tensor<1xi32>
  }

  // Reads the token of the sequence, if it is active, and decodes the next tokens one after the other.
  func.func @decode_1(
      %active: tensor<1xi32>,
      %pages: tensor<1x1xi32>) -> (tensor<1x1xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.kv = util.global.load @"state.kv" : tensor<2048xbf16>
    %state.scratch = util.global.load @"state.scratch" : tensor<3456xi32>
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %chosen_constant = arith.constant 1 : i32
    %chosen:6 = hal.dispatch.extern "mlx_decode"(%chosen_constant, %all_weights, %pages, %active, %state.kv, %state.scratch, %state.token, %state.position, %state.logits) : (i32, tensor<36032xi32>, tensor<1x1xi32>, tensor<1xi32>, tensor<2048xbf16>, tensor<3456xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x320xf32>) -> (%state.kv, %state.scratch, %state.token, %state.position, %state.logits, tensor<1x1xi32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode8.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %chosen#0, @"state.kv" : tensor<2048xbf16>
    util.global.store %chosen#1, @"state.scratch" : tensor<3456xi32>
    util.global.store %chosen#2, @"state.token" : tensor<1xi32>
    util.global.store %chosen#3, @"state.position" : tensor<1xi32>
    util.global.store %chosen#4, @"state.logits" : tensor<1x320xf32>
    return %chosen#5 : tensor<1x1xi32>
  }

  // Reads the token of the sequence, if it is active, and decodes the next tokens one after the other.
  func.func @decode_8(
      %active: tensor<1xi32>,
      %pages: tensor<1x1xi32>) -> (tensor<1x8xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.kv = util.global.load @"state.kv" : tensor<2048xbf16>
    %state.scratch = util.global.load @"state.scratch" : tensor<3456xi32>
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %chosen_constant = arith.constant 8 : i32
    %chosen:6 = hal.dispatch.extern "mlx_decode"(%chosen_constant, %all_weights, %pages, %active, %state.kv, %state.scratch, %state.token, %state.position, %state.logits) : (i32, tensor<36032xi32>, tensor<1x1xi32>, tensor<1xi32>, tensor<2048xbf16>, tensor<3456xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x320xf32>) -> (%state.kv, %state.scratch, %state.token, %state.position, %state.logits, tensor<1x8xi32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode8.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %chosen#0, @"state.kv" : tensor<2048xbf16>
    util.global.store %chosen#1, @"state.scratch" : tensor<3456xi32>
    util.global.store %chosen#2, @"state.token" : tensor<1xi32>
    util.global.store %chosen#3, @"state.position" : tensor<1xi32>
    util.global.store %chosen#4, @"state.logits" : tensor<1x320xf32>
    return %chosen#5 : tensor<1x8xi32>
  }

  // Reads the token of the sequence, if it is active, and decodes the next tokens one after the other.
  func.func @decode_32(
      %active: tensor<1xi32>,
      %pages: tensor<1x1xi32>) -> (tensor<1x32xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.kv = util.global.load @"state.kv" : tensor<2048xbf16>
    %state.scratch = util.global.load @"state.scratch" : tensor<3456xi32>
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %chosen_constant = arith.constant 32 : i32
    %chosen:6 = hal.dispatch.extern "mlx_decode"(%chosen_constant, %all_weights, %pages, %active, %state.kv, %state.scratch, %state.token, %state.position, %state.logits) : (i32, tensor<36032xi32>, tensor<1x1xi32>, tensor<1xi32>, tensor<2048xbf16>, tensor<3456xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x320xf32>) -> (%state.kv, %state.scratch, %state.token, %state.position, %state.logits, tensor<1x32xi32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode8.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %chosen#0, @"state.kv" : tensor<2048xbf16>
    util.global.store %chosen#1, @"state.scratch" : tensor<3456xi32>
    util.global.store %chosen#2, @"state.token" : tensor<1xi32>
    util.global.store %chosen#3, @"state.position" : tensor<1xi32>
    util.global.store %chosen#4, @"state.logits" : tensor<1x320xf32>
    return %chosen#5 : tensor<1x32xi32>
  }

  // Reads the token of the sequence, if it is active, and decodes the next tokens one after the other.
  func.func @decode_128(
      %active: tensor<1xi32>,
      %pages: tensor<1x1xi32>) -> (tensor<1x128xi32>) {
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %state.kv = util.global.load @"state.kv" : tensor<2048xbf16>
    %state.scratch = util.global.load @"state.scratch" : tensor<3456xi32>
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %chosen_constant = arith.constant 128 : i32
    %chosen:6 = hal.dispatch.extern "mlx_decode"(%chosen_constant, %all_weights, %pages, %active, %state.kv, %state.scratch, %state.token, %state.position, %state.logits) : (i32, tensor<36032xi32>, tensor<1x1xi32>, tensor<1xi32>, tensor<2048xbf16>, tensor<3456xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1x320xf32>) -> (%state.kv, %state.scratch, %state.token, %state.position, %state.logits, tensor<1x128xi32>)
      count(%device: !hal.device) -> (index, index, index) {
        %g0 = arith.constant 64 : index
        %g1 = arith.constant 1 : index
        %g2 = arith.constant 1 : index
        hal.return %g0, %g1, %g2 : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>, #hal.pipeline.binding<storage_buffer>]>)
      objects({ #hal.executable.target<"cuda", "cuda-nvptx-fb"> ordinal(0) = [#hal.executable.object<{path = "decode8.fatbin"}>] })
      <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    util.global.store %chosen#0, @"state.kv" : tensor<2048xbf16>
    util.global.store %chosen#1, @"state.scratch" : tensor<3456xi32>
    util.global.store %chosen#2, @"state.token" : tensor<1xi32>
    util.global.store %chosen#3, @"state.position" : tensor<1xi32>
    util.global.store %chosen#4, @"state.logits" : tensor<1x320xf32>
    return %chosen#5 : tensor<1x128xi32>
  }

  // The logits that chose each sequence's current token.
  func.func @logits() -> (tensor<1x320xf32>) {
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    return %state.logits : tensor<1x320xf32>
  }
}
