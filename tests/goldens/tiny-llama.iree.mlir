module @mlxcel {
  util.global private @"model.embed_tokens.weight" = #flow.parameter.named<"model"::"model.embed_tokens.weight"> : tensor<320x32xf32>
  util.global private @"model.layers.0.input_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.0.input_layernorm.weight"> : tensor<32xf32>
  util.global private @"model.layers.0.self_attn.q_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.q_proj.weight"> : tensor<32x32xf32>
  util.global private @"model.layers.0.self_attn.k_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.k_proj.weight"> : tensor<16x32xf32>
  util.global private @"model.layers.0.self_attn.v_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.v_proj.weight"> : tensor<16x32xf32>
  util.global private @"model.layers.0.self_attn.o_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.self_attn.o_proj.weight"> : tensor<32x32xf32>
  util.global private @"model.layers.0.post_attention_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.0.post_attention_layernorm.weight"> : tensor<32xf32>
  util.global private @"model.layers.0.mlp.gate_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.gate_proj.weight"> : tensor<64x32xf32>
  util.global private @"model.layers.0.mlp.up_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.up_proj.weight"> : tensor<64x32xf32>
  util.global private @"model.layers.0.mlp.down_proj.weight" = #flow.parameter.named<"model"::"model.layers.0.mlp.down_proj.weight"> : tensor<32x64xf32>
  util.global private @"model.layers.1.input_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.1.input_layernorm.weight"> : tensor<32xf32>
  util.global private @"model.layers.1.self_attn.q_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.self_attn.q_proj.weight"> : tensor<32x32xf32>
  util.global private @"model.layers.1.self_attn.k_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.self_attn.k_proj.weight"> : tensor<16x32xf32>
  util.global private @"model.layers.1.self_attn.v_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.self_attn.v_proj.weight"> : tensor<16x32xf32>
  util.global private @"model.layers.1.self_attn.o_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.self_attn.o_proj.weight"> : tensor<32x32xf32>
  util.global private @"model.layers.1.post_attention_layernorm.weight" = #flow.parameter.named<"model"::"model.layers.1.post_attention_layernorm.weight"> : tensor<32xf32>
  util.global private @"model.layers.1.mlp.gate_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.mlp.gate_proj.weight"> : tensor<64x32xf32>
  util.global private @"model.layers.1.mlp.up_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.mlp.up_proj.weight"> : tensor<64x32xf32>
  util.global private @"model.layers.1.mlp.down_proj.weight" = #flow.parameter.named<"model"::"model.layers.1.mlp.down_proj.weight"> : tensor<32x64xf32>
  util.global private @"model.norm.weight" = #flow.parameter.named<"model"::"model.norm.weight"> : tensor<32xf32>
  util.global private @"lm_head.weight" = #flow.parameter.named<"model"::"lm_head.weight"> : tensor<320x32xf32>
  util.global private mutable @"kv.0.k" = dense<22.0> : tensor<5x16x2x8xf32>
  util.global private mutable @"kv.0.v" = dense<23.0> : tensor<5x16x2x8xf32>
  util.global private mutable @"kv.1.k" = dense<24.0> : tensor<5x16x2x8xf32>
  util.global private mutable @"kv.1.v" = dense<25.0> : tensor<5x16x2x8xf32>
  util.global private mutable @"state.token" = dense<26> : tensor<1xi32>
  util.global private mutable @"state.position" = dense<27> : tensor<1xi32>
  util.global private mutable @"state.logits" = dense<28.0> : tensor<1x320xf32>

  // Reads count[s] tokens of each sequence s, from position start[s] on. A sequence with count 0 keeps its state.
  func.func @prefill_16(
      %tokens: tensor<1x16xi32>,
      %start: tensor<1xi32>,
      %count: tensor<1xi32>,
      %pages: tensor<1x4xi32>) -> (tensor<1xi32>) {
    %nth_token = stablehlo.iota dim = 1 : tensor<1x16xi32>
    %starts = stablehlo.broadcast_in_dim %start, dims = [0] : (tensor<1xi32>) -> tensor<1x16xi32>
    %counts = stablehlo.broadcast_in_dim %count, dims = [0] : (tensor<1xi32>) -> tensor<1x16xi32>
    %valid = stablehlo.compare LT, %nth_token, %counts : (tensor<1x16xi32>, tensor<1x16xi32>) -> tensor<1x16xi1>
    %position = stablehlo.add %starts, %nth_token : tensor<1x16xi32>
    %positions = stablehlo.reshape %position : (tensor<1x16xi32>) -> tensor<16xi32>

    // KV slot of each token: page and index in the page
    %page_size = stablehlo.constant dense<16> : tensor<1x16xi32>
    %page_number = stablehlo.divide %position, %page_size : tensor<1x16xi32>
    %index_in_page = stablehlo.remainder %position, %page_size : tensor<1x16xi32>
    %sequence = stablehlo.iota dim = 0 : tensor<1x16xi32>
    %sequence_column = stablehlo.reshape %sequence : (tensor<1x16xi32>) -> tensor<1x16x1xi32>
    %page_number_column = stablehlo.reshape %page_number : (tensor<1x16xi32>) -> tensor<1x16x1xi32>
    %sequence_and_page = stablehlo.concatenate %sequence_column, %page_number_column, dim = 2 : (tensor<1x16x1xi32>, tensor<1x16x1xi32>) -> tensor<1x16x2xi32>
    %page = "stablehlo.gather"(%pages, %sequence_and_page) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<1x4xi32>, tensor<1x16x2xi32>) -> tensor<1x16xi32>
    %scratch_page = stablehlo.constant dense<0> : tensor<1x16xi32>
    %page_or_scratch = stablehlo.select %valid, %page, %scratch_page : tensor<1x16xi1>, tensor<1x16xi32>
    %page_column = stablehlo.reshape %page_or_scratch : (tensor<1x16xi32>) -> tensor<16x1xi32>
    %index_column = stablehlo.reshape %index_in_page : (tensor<1x16xi32>) -> tensor<16x1xi32>
    %slots = stablehlo.concatenate %page_column, %index_column, dim = 1 : (tensor<16x1xi32>, tensor<16x1xi32>) -> tensor<16x2xi32>

    // causal mask: positions after each query's own
    %key_position = stablehlo.iota dim = 2 : tensor<1x16x64xi32>
    %query_position = stablehlo.broadcast_in_dim %position, dims = [0, 1] : (tensor<1x16xi32>) -> tensor<1x16x64xi32>
    %is_later = stablehlo.compare GT, %key_position, %query_position : (tensor<1x16x64xi32>, tensor<1x16x64xi32>) -> tensor<1x16x64xi1>
    %flat_tokens = stablehlo.reshape %tokens : (tensor<1x16xi32>) -> tensor<16xi32>

    // index of each sequence's last token
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %last = stablehlo.subtract %count, %one : tensor<1xi32>
    %tokens_per_sequence = stablehlo.constant dense<16> : tensor<1xi32>
    %sequence_2 = stablehlo.iota dim = 0 : tensor<1xi32>
    %sequence_start = stablehlo.multiply %sequence_2, %tokens_per_sequence : tensor<1xi32>
    %last_token = stablehlo.add %sequence_start, %last : tensor<1xi32>
    %last_index = stablehlo.reshape %last_token : (tensor<1xi32>) -> tensor<1x1xi32>
    %model.embed_tokens.weight = util.global.load @"model.embed_tokens.weight" : tensor<320x32xf32>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %flat_tokens : (tensor<16xi32>) -> tensor<16x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<320x32xf32>, tensor<16x1xi32>) -> tensor<16x32xf32>

    // ---- layer0 ----
    %model.layers.0.input_layernorm.weight = util.global.load @"model.layers.0.input_layernorm.weight" : tensor<32xf32>
    %layer0.square = stablehlo.multiply %embedded, %embedded : tensor<16x32xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
    %layer0.width = stablehlo.constant dense<3.200000000e+01> : tensor<16xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<16xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<16xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<16xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<16xf32>) -> tensor<16x32xf32>
    %layer0.normed = stablehlo.multiply %embedded, %layer0.rms_scales : tensor<16x32xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<16x32xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<16x32xf32>
    %model.layers.0.self_attn.q_proj.weight = util.global.load @"model.layers.0.self_attn.q_proj.weight" : tensor<32x32xf32>
    %layer0.by_output = stablehlo.dot_general %model.layers.0.self_attn.q_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer0.q = stablehlo.transpose %layer0.by_output, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %model.layers.0.self_attn.k_proj.weight = util.global.load @"model.layers.0.self_attn.k_proj.weight" : tensor<16x32xf32>
    %layer0.by_output_2 = stablehlo.dot_general %model.layers.0.self_attn.k_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer0.k = stablehlo.transpose %layer0.by_output_2, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %model.layers.0.self_attn.v_proj.weight = util.global.load @"model.layers.0.self_attn.v_proj.weight" : tensor<16x32xf32>
    %layer0.by_output_3 = stablehlo.dot_general %model.layers.0.self_attn.v_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer0.v = stablehlo.transpose %layer0.by_output_3, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %layer0.rope_frequency = stablehlo.constant dense<[1.000000000e+00, 1.000000015e-01, 9.999999776e-03, 1.000000047e-03]> : tensor<4xf32>
    %layer0.position_f32 = stablehlo.convert %positions : (tensor<16xi32>) -> tensor<16xf32>
    %layer0.rope_position = stablehlo.broadcast_in_dim %layer0.position_f32, dims = [0] : (tensor<16xf32>) -> tensor<16x4xf32>
    %layer0.rope_frequencies = stablehlo.broadcast_in_dim %layer0.rope_frequency, dims = [1] : (tensor<4xf32>) -> tensor<16x4xf32>
    %layer0.rope_angle = stablehlo.multiply %layer0.rope_position, %layer0.rope_frequencies : tensor<16x4xf32>
    %layer0.rotations_per_radian = stablehlo.constant dense<1.591549367e-01> : tensor<16x4xf32>
    %layer0.rotations = stablehlo.multiply %layer0.rope_angle, %layer0.rotations_per_radian : tensor<16x4xf32>
    %layer0.whole_rotations = stablehlo.round_nearest_even %layer0.rotations : tensor<16x4xf32>
    %layer0.two_pi_part = stablehlo.constant dense<6.281250000e+00> : tensor<16x4xf32>
    %layer0.rotation_part = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part : tensor<16x4xf32>
    %layer0.reduced_angle = stablehlo.subtract %layer0.rope_angle, %layer0.rotation_part : tensor<16x4xf32>
    %layer0.two_pi_part_2 = stablehlo.constant dense<1.935005188e-03> : tensor<16x4xf32>
    %layer0.rotation_part_2 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_2 : tensor<16x4xf32>
    %layer0.reduced_angle_2 = stablehlo.subtract %layer0.reduced_angle, %layer0.rotation_part_2 : tensor<16x4xf32>
    %layer0.two_pi_part_3 = stablehlo.constant dense<3.019916051e-07> : tensor<16x4xf32>
    %layer0.rotation_part_3 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_3 : tensor<16x4xf32>
    %layer0.reduced_angle_3 = stablehlo.subtract %layer0.reduced_angle_2, %layer0.rotation_part_3 : tensor<16x4xf32>
    %layer0.rope_cos = stablehlo.cosine %layer0.reduced_angle_3 : tensor<16x4xf32>
    %layer0.rope_sin = stablehlo.sine %layer0.reduced_angle_3 : tensor<16x4xf32>
    %layer0.by_head = stablehlo.reshape %layer0.q : (tensor<16x32xf32>) -> tensor<16x4x8xf32>
    %layer0.low = stablehlo.slice %layer0.by_head [0:16, 0:4, 0:4] : (tensor<16x4x8xf32>) -> tensor<16x4x4xf32>
    %layer0.high = stablehlo.slice %layer0.by_head [0:16, 0:4, 4:8] : (tensor<16x4x8xf32>) -> tensor<16x4x4xf32>
    %layer0.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x4x4xf32>
    %layer0.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x4x4xf32>
    %layer0.low_cos = stablehlo.multiply %layer0.low, %layer0.cos : tensor<16x4x4xf32>
    %layer0.high_sin = stablehlo.multiply %layer0.high, %layer0.sin : tensor<16x4x4xf32>
    %layer0.new_low = stablehlo.subtract %layer0.low_cos, %layer0.high_sin : tensor<16x4x4xf32>
    %layer0.high_cos = stablehlo.multiply %layer0.high, %layer0.cos : tensor<16x4x4xf32>
    %layer0.low_sin = stablehlo.multiply %layer0.low, %layer0.sin : tensor<16x4x4xf32>
    %layer0.new_high = stablehlo.add %layer0.high_cos, %layer0.low_sin : tensor<16x4x4xf32>
    %layer0.rotated = stablehlo.concatenate %layer0.new_low, %layer0.new_high, dim = 2 : (tensor<16x4x4xf32>, tensor<16x4x4xf32>) -> tensor<16x4x8xf32>
    %layer0.q_rope = stablehlo.reshape %layer0.rotated : (tensor<16x4x8xf32>) -> tensor<16x32xf32>
    %layer0.by_head_2 = stablehlo.reshape %layer0.k : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %layer0.low_2 = stablehlo.slice %layer0.by_head_2 [0:16, 0:2, 0:4] : (tensor<16x2x8xf32>) -> tensor<16x2x4xf32>
    %layer0.high_2 = stablehlo.slice %layer0.by_head_2 [0:16, 0:2, 4:8] : (tensor<16x2x8xf32>) -> tensor<16x2x4xf32>
    %layer0.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x2x4xf32>
    %layer0.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x2x4xf32>
    %layer0.low_cos_2 = stablehlo.multiply %layer0.low_2, %layer0.cos_2 : tensor<16x2x4xf32>
    %layer0.high_sin_2 = stablehlo.multiply %layer0.high_2, %layer0.sin_2 : tensor<16x2x4xf32>
    %layer0.new_low_2 = stablehlo.subtract %layer0.low_cos_2, %layer0.high_sin_2 : tensor<16x2x4xf32>
    %layer0.high_cos_2 = stablehlo.multiply %layer0.high_2, %layer0.cos_2 : tensor<16x2x4xf32>
    %layer0.low_sin_2 = stablehlo.multiply %layer0.low_2, %layer0.sin_2 : tensor<16x2x4xf32>
    %layer0.new_high_2 = stablehlo.add %layer0.high_cos_2, %layer0.low_sin_2 : tensor<16x2x4xf32>
    %layer0.rotated_2 = stablehlo.concatenate %layer0.new_low_2, %layer0.new_high_2, dim = 2 : (tensor<16x2x4xf32>, tensor<16x2x4xf32>) -> tensor<16x2x8xf32>
    %layer0.k_rope = stablehlo.reshape %layer0.rotated_2 : (tensor<16x2x8xf32>) -> tensor<16x16xf32>
    %layer0.by_head_3 = stablehlo.reshape %layer0.k_rope : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %kv.0.k = util.global.load @"kv.0.k" : tensor<5x16x2x8xf32>
    %layer0.pool = "stablehlo.scatter"(%kv.0.k, %slots, %layer0.by_head_3) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<16x2xi32>, tensor<16x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer0.pool, @"kv.0.k" : tensor<5x16x2x8xf32>
    %layer0.page_index = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer0.paged = "stablehlo.gather"(%layer0.pool, %layer0.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer0.keys = stablehlo.reshape %layer0.paged : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer0.by_head_4 = stablehlo.reshape %layer0.v : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %kv.0.v = util.global.load @"kv.0.v" : tensor<5x16x2x8xf32>
    %layer0.pool_2 = "stablehlo.scatter"(%kv.0.v, %slots, %layer0.by_head_4) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<16x2xi32>, tensor<16x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer0.pool_2, @"kv.0.v" : tensor<5x16x2x8xf32>
    %layer0.page_index_2 = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer0.paged_2 = "stablehlo.gather"(%layer0.pool_2, %layer0.page_index_2) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer0.values = stablehlo.reshape %layer0.paged_2 : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer0.query = stablehlo.reshape %layer0.q_rope : (tensor<16x32xf32>) -> tensor<1x16x2x2x8xf32>
    %layer0.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x16x2x2x8xf32>
    %layer0.scaled_query = stablehlo.multiply %layer0.query, %layer0.scale : tensor<1x16x2x2x8xf32>
    %layer0.scores = stablehlo.dot_general %layer0.scaled_query, %layer0.keys, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3] : (tensor<1x16x2x2x8xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x16x2x64xf32>
    %layer0.mask = stablehlo.broadcast_in_dim %is_later, dims = [0, 2, 4] : (tensor<1x16x64xi1>) -> tensor<1x2x16x2x64xi1>
    %layer0.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<1x2x16x2x64xf32>  // -inf
    %layer0.masked_scores = stablehlo.select %layer0.mask, %layer0.minus_infinity, %layer0.scores : tensor<1x2x16x2x64xi1>, tensor<1x2x16x2x64xf32>
    %layer0.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer0.max_score = stablehlo.reduce(%layer0.masked_scores init: %layer0.start_2) applies stablehlo.maximum across dimensions = [4] : (tensor<1x2x16x2x64xf32>, tensor<f32>) -> tensor<1x2x16x2xf32>
    %layer0.max_scores = stablehlo.broadcast_in_dim %layer0.max_score, dims = [0, 1, 2, 3] : (tensor<1x2x16x2xf32>) -> tensor<1x2x16x2x64xf32>
    %layer0.minus_max = stablehlo.subtract %layer0.masked_scores, %layer0.max_scores : tensor<1x2x16x2x64xf32>
    %layer0.exp = stablehlo.exponential %layer0.minus_max : tensor<1x2x16x2x64xf32>
    %layer0.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.exp_sum = stablehlo.reduce(%layer0.exp init: %layer0.start_3) applies stablehlo.add across dimensions = [4] : (tensor<1x2x16x2x64xf32>, tensor<f32>) -> tensor<1x2x16x2xf32>
    %layer0.exp_sums = stablehlo.broadcast_in_dim %layer0.exp_sum, dims = [0, 1, 2, 3] : (tensor<1x2x16x2xf32>) -> tensor<1x2x16x2x64xf32>
    %layer0.weights = stablehlo.divide %layer0.exp, %layer0.exp_sums : tensor<1x2x16x2x64xf32>
    %layer0.weighted_values = stablehlo.dot_general %layer0.weights, %layer0.values, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<1x2x16x2x64xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x16x2x8xf32>
    %layer0.values_by_token = stablehlo.transpose %layer0.weighted_values, dims = [0, 2, 1, 3, 4] : (tensor<1x2x16x2x8xf32>) -> tensor<1x16x2x2x8xf32>
    %layer0.attended = stablehlo.reshape %layer0.values_by_token : (tensor<1x16x2x2x8xf32>) -> tensor<16x32xf32>
    %model.layers.0.self_attn.o_proj.weight = util.global.load @"model.layers.0.self_attn.o_proj.weight" : tensor<32x32xf32>
    %layer0.by_output_4 = stablehlo.dot_general %model.layers.0.self_attn.o_proj.weight, %layer0.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer0.o = stablehlo.transpose %layer0.by_output_4, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer0.after_attn = stablehlo.add %embedded, %layer0.o : tensor<16x32xf32>
    %model.layers.0.post_attention_layernorm.weight = util.global.load @"model.layers.0.post_attention_layernorm.weight" : tensor<32xf32>
    %layer0.square_2 = stablehlo.multiply %layer0.after_attn, %layer0.after_attn : tensor<16x32xf32>
    %layer0.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum_2 = stablehlo.reduce(%layer0.square_2 init: %layer0.start_4) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
    %layer0.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<16xf32>
    %layer0.square_mean_2 = stablehlo.divide %layer0.square_sum_2, %layer0.width_2 : tensor<16xf32>
    %layer0.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer0.mean_plus_eps_2 = stablehlo.add %layer0.square_mean_2, %layer0.eps_2 : tensor<16xf32>
    %layer0.rms_scale_2 = stablehlo.rsqrt %layer0.mean_plus_eps_2 : tensor<16xf32>
    %layer0.rms_scales_2 = stablehlo.broadcast_in_dim %layer0.rms_scale_2, dims = [0] : (tensor<16xf32>) -> tensor<16x32xf32>
    %layer0.normed_2 = stablehlo.multiply %layer0.after_attn, %layer0.rms_scales_2 : tensor<16x32xf32>
    %layer0.gains_2 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<16x32xf32>
    %layer0.mlp_in = stablehlo.multiply %layer0.normed_2, %layer0.gains_2 : tensor<16x32xf32>
    %model.layers.0.mlp.gate_proj.weight = util.global.load @"model.layers.0.mlp.gate_proj.weight" : tensor<64x32xf32>
    %layer0.by_output_5 = stablehlo.dot_general %model.layers.0.mlp.gate_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer0.gate = stablehlo.transpose %layer0.by_output_5, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %model.layers.0.mlp.up_proj.weight = util.global.load @"model.layers.0.mlp.up_proj.weight" : tensor<64x32xf32>
    %layer0.by_output_6 = stablehlo.dot_general %model.layers.0.mlp.up_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer0.up = stablehlo.transpose %layer0.by_output_6, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %layer0.sigmoid = stablehlo.logistic %layer0.gate : tensor<16x64xf32>
    %layer0.silu = stablehlo.multiply %layer0.gate, %layer0.sigmoid : tensor<16x64xf32>
    %layer0.act = stablehlo.multiply %layer0.silu, %layer0.up : tensor<16x64xf32>
    %model.layers.0.mlp.down_proj.weight = util.global.load @"model.layers.0.mlp.down_proj.weight" : tensor<32x64xf32>
    %layer0.by_output_7 = stablehlo.dot_general %model.layers.0.mlp.down_proj.weight, %layer0.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<16x64xf32>) -> tensor<32x16xf32>
    %layer0.down = stablehlo.transpose %layer0.by_output_7, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer0.out = stablehlo.add %layer0.after_attn, %layer0.down : tensor<16x32xf32>

    // ---- layer1 ----
    %model.layers.1.input_layernorm.weight = util.global.load @"model.layers.1.input_layernorm.weight" : tensor<32xf32>
    %layer1.square = stablehlo.multiply %layer0.out, %layer0.out : tensor<16x32xf32>
    %layer1.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum = stablehlo.reduce(%layer1.square init: %layer1.start) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
    %layer1.width = stablehlo.constant dense<3.200000000e+01> : tensor<16xf32>
    %layer1.square_mean = stablehlo.divide %layer1.square_sum, %layer1.width : tensor<16xf32>
    %layer1.eps = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer1.mean_plus_eps = stablehlo.add %layer1.square_mean, %layer1.eps : tensor<16xf32>
    %layer1.rms_scale = stablehlo.rsqrt %layer1.mean_plus_eps : tensor<16xf32>
    %layer1.rms_scales = stablehlo.broadcast_in_dim %layer1.rms_scale, dims = [0] : (tensor<16xf32>) -> tensor<16x32xf32>
    %layer1.normed = stablehlo.multiply %layer0.out, %layer1.rms_scales : tensor<16x32xf32>
    %layer1.gains = stablehlo.broadcast_in_dim %model.layers.1.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<16x32xf32>
    %layer1.attn_in = stablehlo.multiply %layer1.normed, %layer1.gains : tensor<16x32xf32>
    %model.layers.1.self_attn.q_proj.weight = util.global.load @"model.layers.1.self_attn.q_proj.weight" : tensor<32x32xf32>
    %layer1.by_output = stablehlo.dot_general %model.layers.1.self_attn.q_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer1.q = stablehlo.transpose %layer1.by_output, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %model.layers.1.self_attn.k_proj.weight = util.global.load @"model.layers.1.self_attn.k_proj.weight" : tensor<16x32xf32>
    %layer1.by_output_2 = stablehlo.dot_general %model.layers.1.self_attn.k_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer1.k = stablehlo.transpose %layer1.by_output_2, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %model.layers.1.self_attn.v_proj.weight = util.global.load @"model.layers.1.self_attn.v_proj.weight" : tensor<16x32xf32>
    %layer1.by_output_3 = stablehlo.dot_general %model.layers.1.self_attn.v_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer1.v = stablehlo.transpose %layer1.by_output_3, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %layer1.by_head = stablehlo.reshape %layer1.q : (tensor<16x32xf32>) -> tensor<16x4x8xf32>
    %layer1.low = stablehlo.slice %layer1.by_head [0:16, 0:4, 0:4] : (tensor<16x4x8xf32>) -> tensor<16x4x4xf32>
    %layer1.high = stablehlo.slice %layer1.by_head [0:16, 0:4, 4:8] : (tensor<16x4x8xf32>) -> tensor<16x4x4xf32>
    %layer1.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x4x4xf32>
    %layer1.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x4x4xf32>
    %layer1.low_cos = stablehlo.multiply %layer1.low, %layer1.cos : tensor<16x4x4xf32>
    %layer1.high_sin = stablehlo.multiply %layer1.high, %layer1.sin : tensor<16x4x4xf32>
    %layer1.new_low = stablehlo.subtract %layer1.low_cos, %layer1.high_sin : tensor<16x4x4xf32>
    %layer1.high_cos = stablehlo.multiply %layer1.high, %layer1.cos : tensor<16x4x4xf32>
    %layer1.low_sin = stablehlo.multiply %layer1.low, %layer1.sin : tensor<16x4x4xf32>
    %layer1.new_high = stablehlo.add %layer1.high_cos, %layer1.low_sin : tensor<16x4x4xf32>
    %layer1.rotated = stablehlo.concatenate %layer1.new_low, %layer1.new_high, dim = 2 : (tensor<16x4x4xf32>, tensor<16x4x4xf32>) -> tensor<16x4x8xf32>
    %layer1.q_rope = stablehlo.reshape %layer1.rotated : (tensor<16x4x8xf32>) -> tensor<16x32xf32>
    %layer1.by_head_2 = stablehlo.reshape %layer1.k : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %layer1.low_2 = stablehlo.slice %layer1.by_head_2 [0:16, 0:2, 0:4] : (tensor<16x2x8xf32>) -> tensor<16x2x4xf32>
    %layer1.high_2 = stablehlo.slice %layer1.by_head_2 [0:16, 0:2, 4:8] : (tensor<16x2x8xf32>) -> tensor<16x2x4xf32>
    %layer1.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x2x4xf32>
    %layer1.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<16x4xf32>) -> tensor<16x2x4xf32>
    %layer1.low_cos_2 = stablehlo.multiply %layer1.low_2, %layer1.cos_2 : tensor<16x2x4xf32>
    %layer1.high_sin_2 = stablehlo.multiply %layer1.high_2, %layer1.sin_2 : tensor<16x2x4xf32>
    %layer1.new_low_2 = stablehlo.subtract %layer1.low_cos_2, %layer1.high_sin_2 : tensor<16x2x4xf32>
    %layer1.high_cos_2 = stablehlo.multiply %layer1.high_2, %layer1.cos_2 : tensor<16x2x4xf32>
    %layer1.low_sin_2 = stablehlo.multiply %layer1.low_2, %layer1.sin_2 : tensor<16x2x4xf32>
    %layer1.new_high_2 = stablehlo.add %layer1.high_cos_2, %layer1.low_sin_2 : tensor<16x2x4xf32>
    %layer1.rotated_2 = stablehlo.concatenate %layer1.new_low_2, %layer1.new_high_2, dim = 2 : (tensor<16x2x4xf32>, tensor<16x2x4xf32>) -> tensor<16x2x8xf32>
    %layer1.k_rope = stablehlo.reshape %layer1.rotated_2 : (tensor<16x2x8xf32>) -> tensor<16x16xf32>
    %layer1.by_head_3 = stablehlo.reshape %layer1.k_rope : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %kv.1.k = util.global.load @"kv.1.k" : tensor<5x16x2x8xf32>
    %layer1.pool = "stablehlo.scatter"(%kv.1.k, %slots, %layer1.by_head_3) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<16x2xi32>, tensor<16x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer1.pool, @"kv.1.k" : tensor<5x16x2x8xf32>
    %layer1.page_index = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer1.paged = "stablehlo.gather"(%layer1.pool, %layer1.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer1.keys = stablehlo.reshape %layer1.paged : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer1.by_head_4 = stablehlo.reshape %layer1.v : (tensor<16x16xf32>) -> tensor<16x2x8xf32>
    %kv.1.v = util.global.load @"kv.1.v" : tensor<5x16x2x8xf32>
    %layer1.pool_2 = "stablehlo.scatter"(%kv.1.v, %slots, %layer1.by_head_4) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<16x2xi32>, tensor<16x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer1.pool_2, @"kv.1.v" : tensor<5x16x2x8xf32>
    %layer1.page_index_2 = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer1.paged_2 = "stablehlo.gather"(%layer1.pool_2, %layer1.page_index_2) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer1.values = stablehlo.reshape %layer1.paged_2 : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer1.query = stablehlo.reshape %layer1.q_rope : (tensor<16x32xf32>) -> tensor<1x16x2x2x8xf32>
    %layer1.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x16x2x2x8xf32>
    %layer1.scaled_query = stablehlo.multiply %layer1.query, %layer1.scale : tensor<1x16x2x2x8xf32>
    %layer1.scores = stablehlo.dot_general %layer1.scaled_query, %layer1.keys, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3] : (tensor<1x16x2x2x8xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x16x2x64xf32>
    %layer1.mask = stablehlo.broadcast_in_dim %is_later, dims = [0, 2, 4] : (tensor<1x16x64xi1>) -> tensor<1x2x16x2x64xi1>
    %layer1.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<1x2x16x2x64xf32>  // -inf
    %layer1.masked_scores = stablehlo.select %layer1.mask, %layer1.minus_infinity, %layer1.scores : tensor<1x2x16x2x64xi1>, tensor<1x2x16x2x64xf32>
    %layer1.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer1.max_score = stablehlo.reduce(%layer1.masked_scores init: %layer1.start_2) applies stablehlo.maximum across dimensions = [4] : (tensor<1x2x16x2x64xf32>, tensor<f32>) -> tensor<1x2x16x2xf32>
    %layer1.max_scores = stablehlo.broadcast_in_dim %layer1.max_score, dims = [0, 1, 2, 3] : (tensor<1x2x16x2xf32>) -> tensor<1x2x16x2x64xf32>
    %layer1.minus_max = stablehlo.subtract %layer1.masked_scores, %layer1.max_scores : tensor<1x2x16x2x64xf32>
    %layer1.exp = stablehlo.exponential %layer1.minus_max : tensor<1x2x16x2x64xf32>
    %layer1.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.exp_sum = stablehlo.reduce(%layer1.exp init: %layer1.start_3) applies stablehlo.add across dimensions = [4] : (tensor<1x2x16x2x64xf32>, tensor<f32>) -> tensor<1x2x16x2xf32>
    %layer1.exp_sums = stablehlo.broadcast_in_dim %layer1.exp_sum, dims = [0, 1, 2, 3] : (tensor<1x2x16x2xf32>) -> tensor<1x2x16x2x64xf32>
    %layer1.weights = stablehlo.divide %layer1.exp, %layer1.exp_sums : tensor<1x2x16x2x64xf32>
    %layer1.weighted_values = stablehlo.dot_general %layer1.weights, %layer1.values, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<1x2x16x2x64xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x16x2x8xf32>
    %layer1.values_by_token = stablehlo.transpose %layer1.weighted_values, dims = [0, 2, 1, 3, 4] : (tensor<1x2x16x2x8xf32>) -> tensor<1x16x2x2x8xf32>
    %layer1.attended = stablehlo.reshape %layer1.values_by_token : (tensor<1x16x2x2x8xf32>) -> tensor<16x32xf32>
    %model.layers.1.self_attn.o_proj.weight = util.global.load @"model.layers.1.self_attn.o_proj.weight" : tensor<32x32xf32>
    %layer1.by_output_4 = stablehlo.dot_general %model.layers.1.self_attn.o_proj.weight, %layer1.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer1.o = stablehlo.transpose %layer1.by_output_4, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer1.after_attn = stablehlo.add %layer0.out, %layer1.o : tensor<16x32xf32>
    %model.layers.1.post_attention_layernorm.weight = util.global.load @"model.layers.1.post_attention_layernorm.weight" : tensor<32xf32>
    %layer1.square_2 = stablehlo.multiply %layer1.after_attn, %layer1.after_attn : tensor<16x32xf32>
    %layer1.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum_2 = stablehlo.reduce(%layer1.square_2 init: %layer1.start_4) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
    %layer1.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<16xf32>
    %layer1.square_mean_2 = stablehlo.divide %layer1.square_sum_2, %layer1.width_2 : tensor<16xf32>
    %layer1.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %layer1.mean_plus_eps_2 = stablehlo.add %layer1.square_mean_2, %layer1.eps_2 : tensor<16xf32>
    %layer1.rms_scale_2 = stablehlo.rsqrt %layer1.mean_plus_eps_2 : tensor<16xf32>
    %layer1.rms_scales_2 = stablehlo.broadcast_in_dim %layer1.rms_scale_2, dims = [0] : (tensor<16xf32>) -> tensor<16x32xf32>
    %layer1.normed_2 = stablehlo.multiply %layer1.after_attn, %layer1.rms_scales_2 : tensor<16x32xf32>
    %layer1.gains_2 = stablehlo.broadcast_in_dim %model.layers.1.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<16x32xf32>
    %layer1.mlp_in = stablehlo.multiply %layer1.normed_2, %layer1.gains_2 : tensor<16x32xf32>
    %model.layers.1.mlp.gate_proj.weight = util.global.load @"model.layers.1.mlp.gate_proj.weight" : tensor<64x32xf32>
    %layer1.by_output_5 = stablehlo.dot_general %model.layers.1.mlp.gate_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer1.gate = stablehlo.transpose %layer1.by_output_5, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %model.layers.1.mlp.up_proj.weight = util.global.load @"model.layers.1.mlp.up_proj.weight" : tensor<64x32xf32>
    %layer1.by_output_6 = stablehlo.dot_general %model.layers.1.mlp.up_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer1.up = stablehlo.transpose %layer1.by_output_6, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %layer1.sigmoid = stablehlo.logistic %layer1.gate : tensor<16x64xf32>
    %layer1.silu = stablehlo.multiply %layer1.gate, %layer1.sigmoid : tensor<16x64xf32>
    %layer1.act = stablehlo.multiply %layer1.silu, %layer1.up : tensor<16x64xf32>
    %model.layers.1.mlp.down_proj.weight = util.global.load @"model.layers.1.mlp.down_proj.weight" : tensor<32x64xf32>
    %layer1.by_output_7 = stablehlo.dot_general %model.layers.1.mlp.down_proj.weight, %layer1.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<16x64xf32>) -> tensor<32x16xf32>
    %layer1.down = stablehlo.transpose %layer1.by_output_7, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer1.out = stablehlo.add %layer1.after_attn, %layer1.down : tensor<16x32xf32>
    %model.norm.weight = util.global.load @"model.norm.weight" : tensor<32xf32>
    %square = stablehlo.multiply %layer1.out, %layer1.out : tensor<16x32xf32>
    %start_2 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start_2) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
    %width = stablehlo.constant dense<3.200000000e+01> : tensor<16xf32>
    %square_mean = stablehlo.divide %square_sum, %width : tensor<16xf32>
    %eps = stablehlo.constant dense<9.999999747e-06> : tensor<16xf32>
    %mean_plus_eps = stablehlo.add %square_mean, %eps : tensor<16xf32>
    %rms_scale = stablehlo.rsqrt %mean_plus_eps : tensor<16xf32>
    %rms_scales = stablehlo.broadcast_in_dim %rms_scale, dims = [0] : (tensor<16xf32>) -> tensor<16x32xf32>
    %normed = stablehlo.multiply %layer1.out, %rms_scales : tensor<16x32xf32>
    %gains = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<32xf32>) -> tensor<16x32xf32>
    %final = stablehlo.multiply %normed, %gains : tensor<16x32xf32>

    // hidden states of the tokens whose logits are wanted
    %wanted = "stablehlo.gather"(%final, %last_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<16x32xf32>, tensor<1x1xi32>) -> tensor<1x32xf32>
    %lm_head.weight = util.global.load @"lm_head.weight" : tensor<320x32xf32>
    %by_output = stablehlo.dot_general %lm_head.weight, %wanted, contracting_dims = [1] x [1] : (tensor<320x32xf32>, tensor<1x32xf32>) -> tensor<320x1xf32>
    %logits = stablehlo.reshape %by_output : (tensor<320x1xf32>) -> tensor<1x320xf32>
    %zero = stablehlo.constant dense<0> : tensor<1xi32>
    %is_active = stablehlo.compare GT, %count, %zero : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %end = stablehlo.add %start, %count : tensor<1xi32>

    // the next token, and the state of the active sequences
    %start_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %largest = stablehlo.reduce(%logits init: %start_3) applies stablehlo.maximum across dimensions = [1] : (tensor<1x320xf32>, tensor<f32>) -> tensor<1xf32>
    %largest_wide = stablehlo.broadcast_in_dim %largest, dims = [0] : (tensor<1xf32>) -> tensor<1x320xf32>
    %is_largest = stablehlo.compare EQ, %logits, %largest_wide : (tensor<1x320xf32>, tensor<1x320xf32>) -> tensor<1x320xi1>
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
    %new_logits = stablehlo.select %is_active_wide, %logits, %state.logits : tensor<1x320xi1>, tensor<1x320xf32>
    util.global.store %new_token, @"state.token" : tensor<1xi32>
    util.global.store %new_position, @"state.position" : tensor<1xi32>
    util.global.store %new_logits, @"state.logits" : tensor<1x320xf32>
    return %new_token : tensor<1xi32>
  }

  // Reads the token of each active sequence at its position and chooses the next one.
  func.func @decode_1(
      %active: tensor<1xi32>,
      %pages: tensor<1x4xi32>) -> (tensor<1x1xi32>) {
    %state.token = util.global.load @"state.token" : tensor<1xi32>
    %state.position = util.global.load @"state.position" : tensor<1xi32>
    %zero = stablehlo.constant dense<0> : tensor<1xi32>
    %is_active = stablehlo.compare NE, %active, %zero : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %valid = stablehlo.reshape %is_active : (tensor<1xi1>) -> tensor<1x1xi1>
    %position = stablehlo.reshape %state.position : (tensor<1xi32>) -> tensor<1x1xi32>
    %positions = stablehlo.reshape %position : (tensor<1x1xi32>) -> tensor<1xi32>

    // KV slot of each token: page and index in the page
    %page_size = stablehlo.constant dense<16> : tensor<1x1xi32>
    %page_number = stablehlo.divide %position, %page_size : tensor<1x1xi32>
    %index_in_page = stablehlo.remainder %position, %page_size : tensor<1x1xi32>
    %sequence = stablehlo.iota dim = 0 : tensor<1x1xi32>
    %sequence_column = stablehlo.reshape %sequence : (tensor<1x1xi32>) -> tensor<1x1x1xi32>
    %page_number_column = stablehlo.reshape %page_number : (tensor<1x1xi32>) -> tensor<1x1x1xi32>
    %sequence_and_page = stablehlo.concatenate %sequence_column, %page_number_column, dim = 2 : (tensor<1x1x1xi32>, tensor<1x1x1xi32>) -> tensor<1x1x2xi32>
    %page = "stablehlo.gather"(%pages, %sequence_and_page) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<1x4xi32>, tensor<1x1x2xi32>) -> tensor<1x1xi32>
    %scratch_page = stablehlo.constant dense<0> : tensor<1x1xi32>
    %page_or_scratch = stablehlo.select %valid, %page, %scratch_page : tensor<1x1xi1>, tensor<1x1xi32>
    %slots = stablehlo.concatenate %page_or_scratch, %index_in_page, dim = 1 : (tensor<1x1xi32>, tensor<1x1xi32>) -> tensor<1x2xi32>

    // causal mask: positions after each query's own
    %key_position = stablehlo.iota dim = 2 : tensor<1x1x64xi32>
    %query_position = stablehlo.broadcast_in_dim %position, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<1x1x64xi32>
    %is_later = stablehlo.compare GT, %key_position, %query_position : (tensor<1x1x64xi32>, tensor<1x1x64xi32>) -> tensor<1x1x64xi1>
    %model.embed_tokens.weight = util.global.load @"model.embed_tokens.weight" : tensor<320x32xf32>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %state.token : (tensor<1xi32>) -> tensor<1x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<320x32xf32>, tensor<1x1xi32>) -> tensor<1x32xf32>

    // ---- layer0 ----
    %model.layers.0.input_layernorm.weight = util.global.load @"model.layers.0.input_layernorm.weight" : tensor<32xf32>
    %layer0.square = stablehlo.multiply %embedded, %embedded : tensor<1x32xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<1x32xf32>, tensor<f32>) -> tensor<1xf32>
    %layer0.width = stablehlo.constant dense<3.200000000e+01> : tensor<1xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<1xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<1xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<1xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<1xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<1xf32>) -> tensor<1x32xf32>
    %layer0.normed = stablehlo.multiply %embedded, %layer0.rms_scales : tensor<1x32xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<1x32xf32>
    %model.layers.0.self_attn.q_proj.weight = util.global.load @"model.layers.0.self_attn.q_proj.weight" : tensor<32x32xf32>
    %layer0.by_output = stablehlo.dot_general %model.layers.0.self_attn.q_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer0.q = stablehlo.reshape %layer0.by_output : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %model.layers.0.self_attn.k_proj.weight = util.global.load @"model.layers.0.self_attn.k_proj.weight" : tensor<16x32xf32>
    %layer0.by_output_2 = stablehlo.dot_general %model.layers.0.self_attn.k_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer0.k = stablehlo.reshape %layer0.by_output_2 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %model.layers.0.self_attn.v_proj.weight = util.global.load @"model.layers.0.self_attn.v_proj.weight" : tensor<16x32xf32>
    %layer0.by_output_3 = stablehlo.dot_general %model.layers.0.self_attn.v_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer0.v = stablehlo.reshape %layer0.by_output_3 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %layer0.rope_frequency = stablehlo.constant dense<[1.000000000e+00, 1.000000015e-01, 9.999999776e-03, 1.000000047e-03]> : tensor<4xf32>
    %layer0.position_f32 = stablehlo.convert %positions : (tensor<1xi32>) -> tensor<1xf32>
    %layer0.rope_position = stablehlo.broadcast_in_dim %layer0.position_f32, dims = [0] : (tensor<1xf32>) -> tensor<1x4xf32>
    %layer0.rope_frequencies = stablehlo.broadcast_in_dim %layer0.rope_frequency, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %layer0.rope_angle = stablehlo.multiply %layer0.rope_position, %layer0.rope_frequencies : tensor<1x4xf32>
    %layer0.rotations_per_radian = stablehlo.constant dense<1.591549367e-01> : tensor<1x4xf32>
    %layer0.rotations = stablehlo.multiply %layer0.rope_angle, %layer0.rotations_per_radian : tensor<1x4xf32>
    %layer0.whole_rotations = stablehlo.round_nearest_even %layer0.rotations : tensor<1x4xf32>
    %layer0.two_pi_part = stablehlo.constant dense<6.281250000e+00> : tensor<1x4xf32>
    %layer0.rotation_part = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part : tensor<1x4xf32>
    %layer0.reduced_angle = stablehlo.subtract %layer0.rope_angle, %layer0.rotation_part : tensor<1x4xf32>
    %layer0.two_pi_part_2 = stablehlo.constant dense<1.935005188e-03> : tensor<1x4xf32>
    %layer0.rotation_part_2 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_2 : tensor<1x4xf32>
    %layer0.reduced_angle_2 = stablehlo.subtract %layer0.reduced_angle, %layer0.rotation_part_2 : tensor<1x4xf32>
    %layer0.two_pi_part_3 = stablehlo.constant dense<3.019916051e-07> : tensor<1x4xf32>
    %layer0.rotation_part_3 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_3 : tensor<1x4xf32>
    %layer0.reduced_angle_3 = stablehlo.subtract %layer0.reduced_angle_2, %layer0.rotation_part_3 : tensor<1x4xf32>
    %layer0.rope_cos = stablehlo.cosine %layer0.reduced_angle_3 : tensor<1x4xf32>
    %layer0.rope_sin = stablehlo.sine %layer0.reduced_angle_3 : tensor<1x4xf32>
    %layer0.by_head = stablehlo.reshape %layer0.q : (tensor<1x32xf32>) -> tensor<1x4x8xf32>
    %layer0.low = stablehlo.slice %layer0.by_head [0:1, 0:4, 0:4] : (tensor<1x4x8xf32>) -> tensor<1x4x4xf32>
    %layer0.high = stablehlo.slice %layer0.by_head [0:1, 0:4, 4:8] : (tensor<1x4x8xf32>) -> tensor<1x4x4xf32>
    %layer0.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
    %layer0.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
    %layer0.low_cos = stablehlo.multiply %layer0.low, %layer0.cos : tensor<1x4x4xf32>
    %layer0.high_sin = stablehlo.multiply %layer0.high, %layer0.sin : tensor<1x4x4xf32>
    %layer0.new_low = stablehlo.subtract %layer0.low_cos, %layer0.high_sin : tensor<1x4x4xf32>
    %layer0.high_cos = stablehlo.multiply %layer0.high, %layer0.cos : tensor<1x4x4xf32>
    %layer0.low_sin = stablehlo.multiply %layer0.low, %layer0.sin : tensor<1x4x4xf32>
    %layer0.new_high = stablehlo.add %layer0.high_cos, %layer0.low_sin : tensor<1x4x4xf32>
    %layer0.rotated = stablehlo.concatenate %layer0.new_low, %layer0.new_high, dim = 2 : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x8xf32>
    %layer0.q_rope = stablehlo.reshape %layer0.rotated : (tensor<1x4x8xf32>) -> tensor<1x32xf32>
    %layer0.by_head_2 = stablehlo.reshape %layer0.k : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %layer0.low_2 = stablehlo.slice %layer0.by_head_2 [0:1, 0:2, 0:4] : (tensor<1x2x8xf32>) -> tensor<1x2x4xf32>
    %layer0.high_2 = stablehlo.slice %layer0.by_head_2 [0:1, 0:2, 4:8] : (tensor<1x2x8xf32>) -> tensor<1x2x4xf32>
    %layer0.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
    %layer0.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
    %layer0.low_cos_2 = stablehlo.multiply %layer0.low_2, %layer0.cos_2 : tensor<1x2x4xf32>
    %layer0.high_sin_2 = stablehlo.multiply %layer0.high_2, %layer0.sin_2 : tensor<1x2x4xf32>
    %layer0.new_low_2 = stablehlo.subtract %layer0.low_cos_2, %layer0.high_sin_2 : tensor<1x2x4xf32>
    %layer0.high_cos_2 = stablehlo.multiply %layer0.high_2, %layer0.cos_2 : tensor<1x2x4xf32>
    %layer0.low_sin_2 = stablehlo.multiply %layer0.low_2, %layer0.sin_2 : tensor<1x2x4xf32>
    %layer0.new_high_2 = stablehlo.add %layer0.high_cos_2, %layer0.low_sin_2 : tensor<1x2x4xf32>
    %layer0.rotated_2 = stablehlo.concatenate %layer0.new_low_2, %layer0.new_high_2, dim = 2 : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<1x2x8xf32>
    %layer0.k_rope = stablehlo.reshape %layer0.rotated_2 : (tensor<1x2x8xf32>) -> tensor<1x16xf32>
    %layer0.by_head_3 = stablehlo.reshape %layer0.k_rope : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %kv.0.k = util.global.load @"kv.0.k" : tensor<5x16x2x8xf32>
    %layer0.pool = "stablehlo.scatter"(%kv.0.k, %slots, %layer0.by_head_3) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<1x2xi32>, tensor<1x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer0.pool, @"kv.0.k" : tensor<5x16x2x8xf32>
    %layer0.page_index = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer0.paged = "stablehlo.gather"(%layer0.pool, %layer0.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer0.keys = stablehlo.reshape %layer0.paged : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer0.by_head_4 = stablehlo.reshape %layer0.v : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %kv.0.v = util.global.load @"kv.0.v" : tensor<5x16x2x8xf32>
    %layer0.pool_2 = "stablehlo.scatter"(%kv.0.v, %slots, %layer0.by_head_4) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<1x2xi32>, tensor<1x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer0.pool_2, @"kv.0.v" : tensor<5x16x2x8xf32>
    %layer0.page_index_2 = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer0.paged_2 = "stablehlo.gather"(%layer0.pool_2, %layer0.page_index_2) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer0.values = stablehlo.reshape %layer0.paged_2 : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer0.query = stablehlo.reshape %layer0.q_rope : (tensor<1x32xf32>) -> tensor<1x1x2x2x8xf32>
    %layer0.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x1x2x2x8xf32>
    %layer0.scaled_query = stablehlo.multiply %layer0.query, %layer0.scale : tensor<1x1x2x2x8xf32>
    %layer0.scores = stablehlo.dot_general %layer0.scaled_query, %layer0.keys, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3] : (tensor<1x1x2x2x8xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x1x2x64xf32>
    %layer0.mask = stablehlo.broadcast_in_dim %is_later, dims = [0, 2, 4] : (tensor<1x1x64xi1>) -> tensor<1x2x1x2x64xi1>
    %layer0.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<1x2x1x2x64xf32>  // -inf
    %layer0.masked_scores = stablehlo.select %layer0.mask, %layer0.minus_infinity, %layer0.scores : tensor<1x2x1x2x64xi1>, tensor<1x2x1x2x64xf32>
    %layer0.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer0.max_score = stablehlo.reduce(%layer0.masked_scores init: %layer0.start_2) applies stablehlo.maximum across dimensions = [4] : (tensor<1x2x1x2x64xf32>, tensor<f32>) -> tensor<1x2x1x2xf32>
    %layer0.max_scores = stablehlo.broadcast_in_dim %layer0.max_score, dims = [0, 1, 2, 3] : (tensor<1x2x1x2xf32>) -> tensor<1x2x1x2x64xf32>
    %layer0.minus_max = stablehlo.subtract %layer0.masked_scores, %layer0.max_scores : tensor<1x2x1x2x64xf32>
    %layer0.exp = stablehlo.exponential %layer0.minus_max : tensor<1x2x1x2x64xf32>
    %layer0.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.exp_sum = stablehlo.reduce(%layer0.exp init: %layer0.start_3) applies stablehlo.add across dimensions = [4] : (tensor<1x2x1x2x64xf32>, tensor<f32>) -> tensor<1x2x1x2xf32>
    %layer0.exp_sums = stablehlo.broadcast_in_dim %layer0.exp_sum, dims = [0, 1, 2, 3] : (tensor<1x2x1x2xf32>) -> tensor<1x2x1x2x64xf32>
    %layer0.weights = stablehlo.divide %layer0.exp, %layer0.exp_sums : tensor<1x2x1x2x64xf32>
    %layer0.weighted_values = stablehlo.dot_general %layer0.weights, %layer0.values, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<1x2x1x2x64xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x1x2x8xf32>
    %layer0.values_by_token = stablehlo.transpose %layer0.weighted_values, dims = [0, 2, 1, 3, 4] : (tensor<1x2x1x2x8xf32>) -> tensor<1x1x2x2x8xf32>
    %layer0.attended = stablehlo.reshape %layer0.values_by_token : (tensor<1x1x2x2x8xf32>) -> tensor<1x32xf32>
    %model.layers.0.self_attn.o_proj.weight = util.global.load @"model.layers.0.self_attn.o_proj.weight" : tensor<32x32xf32>
    %layer0.by_output_4 = stablehlo.dot_general %model.layers.0.self_attn.o_proj.weight, %layer0.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer0.o = stablehlo.reshape %layer0.by_output_4 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer0.after_attn = stablehlo.add %embedded, %layer0.o : tensor<1x32xf32>
    %model.layers.0.post_attention_layernorm.weight = util.global.load @"model.layers.0.post_attention_layernorm.weight" : tensor<32xf32>
    %layer0.square_2 = stablehlo.multiply %layer0.after_attn, %layer0.after_attn : tensor<1x32xf32>
    %layer0.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum_2 = stablehlo.reduce(%layer0.square_2 init: %layer0.start_4) applies stablehlo.add across dimensions = [1] : (tensor<1x32xf32>, tensor<f32>) -> tensor<1xf32>
    %layer0.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<1xf32>
    %layer0.square_mean_2 = stablehlo.divide %layer0.square_sum_2, %layer0.width_2 : tensor<1xf32>
    %layer0.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<1xf32>
    %layer0.mean_plus_eps_2 = stablehlo.add %layer0.square_mean_2, %layer0.eps_2 : tensor<1xf32>
    %layer0.rms_scale_2 = stablehlo.rsqrt %layer0.mean_plus_eps_2 : tensor<1xf32>
    %layer0.rms_scales_2 = stablehlo.broadcast_in_dim %layer0.rms_scale_2, dims = [0] : (tensor<1xf32>) -> tensor<1x32xf32>
    %layer0.normed_2 = stablehlo.multiply %layer0.after_attn, %layer0.rms_scales_2 : tensor<1x32xf32>
    %layer0.gains_2 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %layer0.mlp_in = stablehlo.multiply %layer0.normed_2, %layer0.gains_2 : tensor<1x32xf32>
    %model.layers.0.mlp.gate_proj.weight = util.global.load @"model.layers.0.mlp.gate_proj.weight" : tensor<64x32xf32>
    %layer0.by_output_5 = stablehlo.dot_general %model.layers.0.mlp.gate_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer0.gate = stablehlo.reshape %layer0.by_output_5 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %model.layers.0.mlp.up_proj.weight = util.global.load @"model.layers.0.mlp.up_proj.weight" : tensor<64x32xf32>
    %layer0.by_output_6 = stablehlo.dot_general %model.layers.0.mlp.up_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer0.up = stablehlo.reshape %layer0.by_output_6 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %layer0.sigmoid = stablehlo.logistic %layer0.gate : tensor<1x64xf32>
    %layer0.silu = stablehlo.multiply %layer0.gate, %layer0.sigmoid : tensor<1x64xf32>
    %layer0.act = stablehlo.multiply %layer0.silu, %layer0.up : tensor<1x64xf32>
    %model.layers.0.mlp.down_proj.weight = util.global.load @"model.layers.0.mlp.down_proj.weight" : tensor<32x64xf32>
    %layer0.by_output_7 = stablehlo.dot_general %model.layers.0.mlp.down_proj.weight, %layer0.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<1x64xf32>) -> tensor<32x1xf32>
    %layer0.down = stablehlo.reshape %layer0.by_output_7 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer0.out = stablehlo.add %layer0.after_attn, %layer0.down : tensor<1x32xf32>

    // ---- layer1 ----
    %model.layers.1.input_layernorm.weight = util.global.load @"model.layers.1.input_layernorm.weight" : tensor<32xf32>
    %layer1.square = stablehlo.multiply %layer0.out, %layer0.out : tensor<1x32xf32>
    %layer1.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum = stablehlo.reduce(%layer1.square init: %layer1.start) applies stablehlo.add across dimensions = [1] : (tensor<1x32xf32>, tensor<f32>) -> tensor<1xf32>
    %layer1.width = stablehlo.constant dense<3.200000000e+01> : tensor<1xf32>
    %layer1.square_mean = stablehlo.divide %layer1.square_sum, %layer1.width : tensor<1xf32>
    %layer1.eps = stablehlo.constant dense<9.999999747e-06> : tensor<1xf32>
    %layer1.mean_plus_eps = stablehlo.add %layer1.square_mean, %layer1.eps : tensor<1xf32>
    %layer1.rms_scale = stablehlo.rsqrt %layer1.mean_plus_eps : tensor<1xf32>
    %layer1.rms_scales = stablehlo.broadcast_in_dim %layer1.rms_scale, dims = [0] : (tensor<1xf32>) -> tensor<1x32xf32>
    %layer1.normed = stablehlo.multiply %layer0.out, %layer1.rms_scales : tensor<1x32xf32>
    %layer1.gains = stablehlo.broadcast_in_dim %model.layers.1.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %layer1.attn_in = stablehlo.multiply %layer1.normed, %layer1.gains : tensor<1x32xf32>
    %model.layers.1.self_attn.q_proj.weight = util.global.load @"model.layers.1.self_attn.q_proj.weight" : tensor<32x32xf32>
    %layer1.by_output = stablehlo.dot_general %model.layers.1.self_attn.q_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer1.q = stablehlo.reshape %layer1.by_output : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %model.layers.1.self_attn.k_proj.weight = util.global.load @"model.layers.1.self_attn.k_proj.weight" : tensor<16x32xf32>
    %layer1.by_output_2 = stablehlo.dot_general %model.layers.1.self_attn.k_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer1.k = stablehlo.reshape %layer1.by_output_2 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %model.layers.1.self_attn.v_proj.weight = util.global.load @"model.layers.1.self_attn.v_proj.weight" : tensor<16x32xf32>
    %layer1.by_output_3 = stablehlo.dot_general %model.layers.1.self_attn.v_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer1.v = stablehlo.reshape %layer1.by_output_3 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %layer1.by_head = stablehlo.reshape %layer1.q : (tensor<1x32xf32>) -> tensor<1x4x8xf32>
    %layer1.low = stablehlo.slice %layer1.by_head [0:1, 0:4, 0:4] : (tensor<1x4x8xf32>) -> tensor<1x4x4xf32>
    %layer1.high = stablehlo.slice %layer1.by_head [0:1, 0:4, 4:8] : (tensor<1x4x8xf32>) -> tensor<1x4x4xf32>
    %layer1.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
    %layer1.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
    %layer1.low_cos = stablehlo.multiply %layer1.low, %layer1.cos : tensor<1x4x4xf32>
    %layer1.high_sin = stablehlo.multiply %layer1.high, %layer1.sin : tensor<1x4x4xf32>
    %layer1.new_low = stablehlo.subtract %layer1.low_cos, %layer1.high_sin : tensor<1x4x4xf32>
    %layer1.high_cos = stablehlo.multiply %layer1.high, %layer1.cos : tensor<1x4x4xf32>
    %layer1.low_sin = stablehlo.multiply %layer1.low, %layer1.sin : tensor<1x4x4xf32>
    %layer1.new_high = stablehlo.add %layer1.high_cos, %layer1.low_sin : tensor<1x4x4xf32>
    %layer1.rotated = stablehlo.concatenate %layer1.new_low, %layer1.new_high, dim = 2 : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<1x4x8xf32>
    %layer1.q_rope = stablehlo.reshape %layer1.rotated : (tensor<1x4x8xf32>) -> tensor<1x32xf32>
    %layer1.by_head_2 = stablehlo.reshape %layer1.k : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %layer1.low_2 = stablehlo.slice %layer1.by_head_2 [0:1, 0:2, 0:4] : (tensor<1x2x8xf32>) -> tensor<1x2x4xf32>
    %layer1.high_2 = stablehlo.slice %layer1.by_head_2 [0:1, 0:2, 4:8] : (tensor<1x2x8xf32>) -> tensor<1x2x4xf32>
    %layer1.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
    %layer1.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
    %layer1.low_cos_2 = stablehlo.multiply %layer1.low_2, %layer1.cos_2 : tensor<1x2x4xf32>
    %layer1.high_sin_2 = stablehlo.multiply %layer1.high_2, %layer1.sin_2 : tensor<1x2x4xf32>
    %layer1.new_low_2 = stablehlo.subtract %layer1.low_cos_2, %layer1.high_sin_2 : tensor<1x2x4xf32>
    %layer1.high_cos_2 = stablehlo.multiply %layer1.high_2, %layer1.cos_2 : tensor<1x2x4xf32>
    %layer1.low_sin_2 = stablehlo.multiply %layer1.low_2, %layer1.sin_2 : tensor<1x2x4xf32>
    %layer1.new_high_2 = stablehlo.add %layer1.high_cos_2, %layer1.low_sin_2 : tensor<1x2x4xf32>
    %layer1.rotated_2 = stablehlo.concatenate %layer1.new_low_2, %layer1.new_high_2, dim = 2 : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<1x2x8xf32>
    %layer1.k_rope = stablehlo.reshape %layer1.rotated_2 : (tensor<1x2x8xf32>) -> tensor<1x16xf32>
    %layer1.by_head_3 = stablehlo.reshape %layer1.k_rope : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %kv.1.k = util.global.load @"kv.1.k" : tensor<5x16x2x8xf32>
    %layer1.pool = "stablehlo.scatter"(%kv.1.k, %slots, %layer1.by_head_3) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<1x2xi32>, tensor<1x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer1.pool, @"kv.1.k" : tensor<5x16x2x8xf32>
    %layer1.page_index = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer1.paged = "stablehlo.gather"(%layer1.pool, %layer1.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer1.keys = stablehlo.reshape %layer1.paged : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer1.by_head_4 = stablehlo.reshape %layer1.v : (tensor<1x16xf32>) -> tensor<1x2x8xf32>
    %kv.1.v = util.global.load @"kv.1.v" : tensor<5x16x2x8xf32>
    %layer1.pool_2 = "stablehlo.scatter"(%kv.1.v, %slots, %layer1.by_head_4) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<5x16x2x8xf32>, tensor<1x2xi32>, tensor<1x2x8xf32>) -> tensor<5x16x2x8xf32>
    util.global.store %layer1.pool_2, @"kv.1.v" : tensor<5x16x2x8xf32>
    %layer1.page_index_2 = stablehlo.reshape %pages : (tensor<1x4xi32>) -> tensor<1x4x1xi32>
    %layer1.paged_2 = "stablehlo.gather"(%layer1.pool_2, %layer1.page_index_2) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16, 2, 8>}> : (tensor<5x16x2x8xf32>, tensor<1x4x1xi32>) -> tensor<1x4x16x2x8xf32>
    %layer1.values = stablehlo.reshape %layer1.paged_2 : (tensor<1x4x16x2x8xf32>) -> tensor<1x64x2x8xf32>
    %layer1.query = stablehlo.reshape %layer1.q_rope : (tensor<1x32xf32>) -> tensor<1x1x2x2x8xf32>
    %layer1.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x1x2x2x8xf32>
    %layer1.scaled_query = stablehlo.multiply %layer1.query, %layer1.scale : tensor<1x1x2x2x8xf32>
    %layer1.scores = stablehlo.dot_general %layer1.scaled_query, %layer1.keys, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3] : (tensor<1x1x2x2x8xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x1x2x64xf32>
    %layer1.mask = stablehlo.broadcast_in_dim %is_later, dims = [0, 2, 4] : (tensor<1x1x64xi1>) -> tensor<1x2x1x2x64xi1>
    %layer1.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<1x2x1x2x64xf32>  // -inf
    %layer1.masked_scores = stablehlo.select %layer1.mask, %layer1.minus_infinity, %layer1.scores : tensor<1x2x1x2x64xi1>, tensor<1x2x1x2x64xf32>
    %layer1.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer1.max_score = stablehlo.reduce(%layer1.masked_scores init: %layer1.start_2) applies stablehlo.maximum across dimensions = [4] : (tensor<1x2x1x2x64xf32>, tensor<f32>) -> tensor<1x2x1x2xf32>
    %layer1.max_scores = stablehlo.broadcast_in_dim %layer1.max_score, dims = [0, 1, 2, 3] : (tensor<1x2x1x2xf32>) -> tensor<1x2x1x2x64xf32>
    %layer1.minus_max = stablehlo.subtract %layer1.masked_scores, %layer1.max_scores : tensor<1x2x1x2x64xf32>
    %layer1.exp = stablehlo.exponential %layer1.minus_max : tensor<1x2x1x2x64xf32>
    %layer1.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.exp_sum = stablehlo.reduce(%layer1.exp init: %layer1.start_3) applies stablehlo.add across dimensions = [4] : (tensor<1x2x1x2x64xf32>, tensor<f32>) -> tensor<1x2x1x2xf32>
    %layer1.exp_sums = stablehlo.broadcast_in_dim %layer1.exp_sum, dims = [0, 1, 2, 3] : (tensor<1x2x1x2xf32>) -> tensor<1x2x1x2x64xf32>
    %layer1.weights = stablehlo.divide %layer1.exp, %layer1.exp_sums : tensor<1x2x1x2x64xf32>
    %layer1.weighted_values = stablehlo.dot_general %layer1.weights, %layer1.values, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1] : (tensor<1x2x1x2x64xf32>, tensor<1x64x2x8xf32>) -> tensor<1x2x1x2x8xf32>
    %layer1.values_by_token = stablehlo.transpose %layer1.weighted_values, dims = [0, 2, 1, 3, 4] : (tensor<1x2x1x2x8xf32>) -> tensor<1x1x2x2x8xf32>
    %layer1.attended = stablehlo.reshape %layer1.values_by_token : (tensor<1x1x2x2x8xf32>) -> tensor<1x32xf32>
    %model.layers.1.self_attn.o_proj.weight = util.global.load @"model.layers.1.self_attn.o_proj.weight" : tensor<32x32xf32>
    %layer1.by_output_4 = stablehlo.dot_general %model.layers.1.self_attn.o_proj.weight, %layer1.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer1.o = stablehlo.reshape %layer1.by_output_4 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer1.after_attn = stablehlo.add %layer0.out, %layer1.o : tensor<1x32xf32>
    %model.layers.1.post_attention_layernorm.weight = util.global.load @"model.layers.1.post_attention_layernorm.weight" : tensor<32xf32>
    %layer1.square_2 = stablehlo.multiply %layer1.after_attn, %layer1.after_attn : tensor<1x32xf32>
    %layer1.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum_2 = stablehlo.reduce(%layer1.square_2 init: %layer1.start_4) applies stablehlo.add across dimensions = [1] : (tensor<1x32xf32>, tensor<f32>) -> tensor<1xf32>
    %layer1.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<1xf32>
    %layer1.square_mean_2 = stablehlo.divide %layer1.square_sum_2, %layer1.width_2 : tensor<1xf32>
    %layer1.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<1xf32>
    %layer1.mean_plus_eps_2 = stablehlo.add %layer1.square_mean_2, %layer1.eps_2 : tensor<1xf32>
    %layer1.rms_scale_2 = stablehlo.rsqrt %layer1.mean_plus_eps_2 : tensor<1xf32>
    %layer1.rms_scales_2 = stablehlo.broadcast_in_dim %layer1.rms_scale_2, dims = [0] : (tensor<1xf32>) -> tensor<1x32xf32>
    %layer1.normed_2 = stablehlo.multiply %layer1.after_attn, %layer1.rms_scales_2 : tensor<1x32xf32>
    %layer1.gains_2 = stablehlo.broadcast_in_dim %model.layers.1.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %layer1.mlp_in = stablehlo.multiply %layer1.normed_2, %layer1.gains_2 : tensor<1x32xf32>
    %model.layers.1.mlp.gate_proj.weight = util.global.load @"model.layers.1.mlp.gate_proj.weight" : tensor<64x32xf32>
    %layer1.by_output_5 = stablehlo.dot_general %model.layers.1.mlp.gate_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer1.gate = stablehlo.reshape %layer1.by_output_5 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %model.layers.1.mlp.up_proj.weight = util.global.load @"model.layers.1.mlp.up_proj.weight" : tensor<64x32xf32>
    %layer1.by_output_6 = stablehlo.dot_general %model.layers.1.mlp.up_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer1.up = stablehlo.reshape %layer1.by_output_6 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %layer1.sigmoid = stablehlo.logistic %layer1.gate : tensor<1x64xf32>
    %layer1.silu = stablehlo.multiply %layer1.gate, %layer1.sigmoid : tensor<1x64xf32>
    %layer1.act = stablehlo.multiply %layer1.silu, %layer1.up : tensor<1x64xf32>
    %model.layers.1.mlp.down_proj.weight = util.global.load @"model.layers.1.mlp.down_proj.weight" : tensor<32x64xf32>
    %layer1.by_output_7 = stablehlo.dot_general %model.layers.1.mlp.down_proj.weight, %layer1.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<1x64xf32>) -> tensor<32x1xf32>
    %layer1.down = stablehlo.reshape %layer1.by_output_7 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer1.out = stablehlo.add %layer1.after_attn, %layer1.down : tensor<1x32xf32>
    %model.norm.weight = util.global.load @"model.norm.weight" : tensor<32xf32>
    %square = stablehlo.multiply %layer1.out, %layer1.out : tensor<1x32xf32>
    %start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start) applies stablehlo.add across dimensions = [1] : (tensor<1x32xf32>, tensor<f32>) -> tensor<1xf32>
    %width = stablehlo.constant dense<3.200000000e+01> : tensor<1xf32>
    %square_mean = stablehlo.divide %square_sum, %width : tensor<1xf32>
    %eps = stablehlo.constant dense<9.999999747e-06> : tensor<1xf32>
    %mean_plus_eps = stablehlo.add %square_mean, %eps : tensor<1xf32>
    %rms_scale = stablehlo.rsqrt %mean_plus_eps : tensor<1xf32>
    %rms_scales = stablehlo.broadcast_in_dim %rms_scale, dims = [0] : (tensor<1xf32>) -> tensor<1x32xf32>
    %normed = stablehlo.multiply %layer1.out, %rms_scales : tensor<1x32xf32>
    %gains = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %final = stablehlo.multiply %normed, %gains : tensor<1x32xf32>
    %lm_head.weight = util.global.load @"lm_head.weight" : tensor<320x32xf32>
    %by_output = stablehlo.dot_general %lm_head.weight, %final, contracting_dims = [1] x [1] : (tensor<320x32xf32>, tensor<1x32xf32>) -> tensor<320x1xf32>
    %logits = stablehlo.reshape %by_output : (tensor<320x1xf32>) -> tensor<1x320xf32>
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %after = stablehlo.add %state.position, %one : tensor<1xi32>

    // the next token, and the state of the active sequences
    %start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %largest = stablehlo.reduce(%logits init: %start_2) applies stablehlo.maximum across dimensions = [1] : (tensor<1x320xf32>, tensor<f32>) -> tensor<1xf32>
    %largest_wide = stablehlo.broadcast_in_dim %largest, dims = [0] : (tensor<1xf32>) -> tensor<1x320xf32>
    %is_largest = stablehlo.compare EQ, %logits, %largest_wide : (tensor<1x320xf32>, tensor<1x320xf32>) -> tensor<1x320xi1>
    %index = stablehlo.iota dim = 1 : tensor<1x320xi32>
    %index_f32 = stablehlo.convert %index : (tensor<1x320xi32>) -> tensor<1x320xf32>
    %last_index = stablehlo.constant dense<3.190000000e+02> : tensor<1x320xf32>
    %from_end = stablehlo.subtract %last_index, %index_f32 : tensor<1x320xf32>
    %no_index = stablehlo.constant dense<0.000000000e+00> : tensor<1x320xf32>
    %candidates = stablehlo.select %is_largest, %from_end, %no_index : tensor<1x320xi1>, tensor<1x320xf32>
    %start_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %furthest = stablehlo.reduce(%candidates init: %start_3) applies stablehlo.maximum across dimensions = [1] : (tensor<1x320xf32>, tensor<f32>) -> tensor<1xf32>
    %last_place = stablehlo.constant dense<3.190000000e+02> : tensor<1xf32>
    %first_largest = stablehlo.subtract %last_place, %furthest : tensor<1xf32>
    %next = stablehlo.convert %first_largest : (tensor<1xf32>) -> tensor<1xi32>
    %new_token = stablehlo.select %is_active, %next, %state.token : tensor<1xi1>, tensor<1xi32>
    %new_position = stablehlo.select %is_active, %after, %state.position : tensor<1xi1>, tensor<1xi32>
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    %is_active_wide = stablehlo.broadcast_in_dim %is_active, dims = [0] : (tensor<1xi1>) -> tensor<1x320xi1>
    %new_logits = stablehlo.select %is_active_wide, %logits, %state.logits : tensor<1x320xi1>, tensor<1x320xf32>
    util.global.store %new_token, @"state.token" : tensor<1xi32>
    util.global.store %new_position, @"state.position" : tensor<1xi32>
    util.global.store %new_logits, @"state.logits" : tensor<1x320xf32>
    %next_column = stablehlo.reshape %new_token : (tensor<1xi32>) -> tensor<1x1xi32>
    return %next_column : tensor<1x1xi32>
  }

  // The logits that chose each sequence's current token.
  func.func @logits() -> (tensor<1x320xf32>) {
    %state.logits = util.global.load @"state.logits" : tensor<1x320xf32>
    return %state.logits : tensor<1x320xf32>
  }
}
