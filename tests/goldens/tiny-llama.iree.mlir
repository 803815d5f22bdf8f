module @mlxcel {
  util.global private @"*" = #flow.parameter.named<"model"::"*"> : tensor<39072xi32>

  // A forward pass over the tokens of |batch|.
  func.func @step_1(
      %batch: tensor<?xi32>,
      %history: tensor<?xi32> {iree.abi.output = 0 : index},
      %kv: tensor<?x16xf32> {iree.abi.output = 1 : index},
      %logits: tensor<?x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<?x32xf32> {iree.abi.output = 3 : index},
      %results: tensor<?x48xi32> {iree.abi.output = 4 : index},
      %chunks: i32) -> (tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>) {
    %batch_dim = arith.constant 0 : index
    %batch_size = tensor.dim %batch, %batch_dim : tensor<?xi32>
    %history_dim = arith.constant 0 : index
    %history_size = tensor.dim %history, %history_dim : tensor<?xi32>
    %kv_dim = arith.constant 0 : index
    %kv_size = tensor.dim %kv, %kv_dim : tensor<?x16xf32>
    %logits_dim = arith.constant 0 : index
    %logits_size = tensor.dim %logits, %logits_dim : tensor<?x320xf32>
    %hidden_dim = arith.constant 0 : index
    %hidden_size = tensor.dim %hidden, %hidden_dim : tensor<?x32xf32>
    %results_dim = arith.constant 0 : index
    %results_size = tensor.dim %results, %results_dim : tensor<?x48xi32>
    %given_position = stablehlo.slice %batch [66:67] : (tensor<?xi32>) -> tensor<1xi32>
    %zero = stablehlo.constant dense<0> : tensor<1xi32>
    %is_padding = stablehlo.compare LT, %given_position, %zero : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %position = stablehlo.slice %batch [66:67] : (tensor<?xi32>) -> tensor<1xi32>
    %zero_2 = stablehlo.constant dense<0> : tensor<1xi32>
    %positions = stablehlo.maximum %position, %zero_2 : tensor<1xi32>
    %wanted_tokens = stablehlo.slice %batch [71:72] : (tensor<?xi32>) -> tensor<1xi32>
    %wanted_index = stablehlo.reshape %wanted_tokens : (tensor<1xi32>) -> tensor<1x1xi32>

    // token IDs: given, or sampled by an earlier step
    %given_tokens = stablehlo.slice %batch [64:65] : (tensor<?xi32>) -> tensor<1xi32>
    %history_slots = stablehlo.slice %batch [65:66] : (tensor<?xi32>) -> tensor<1xi32>
    %history_positions = stablehlo.slice %batch [66:67] : (tensor<?xi32>) -> tensor<1xi32>
    %history_width = stablehlo.slice %batch [6:7] : (tensor<?xi32>) -> tensor<1xi32>
    %history_start = stablehlo.multiply %history_slots, %history_width : tensor<1xi32>
    %history_at = stablehlo.add %history_start, %history_positions : tensor<1xi32>
    %history_index = stablehlo.reshape %history_at : (tensor<1xi32>) -> tensor<1x1xi32>
    %stored_tokens = "stablehlo.gather"(%history, %history_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<1x1xi32>) -> tensor<1xi32>
    %sampled = stablehlo.constant dense<-1> : tensor<1xi32>
    %is_sampled = stablehlo.compare EQ, %given_tokens, %sampled : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %token_ids = stablehlo.select %is_sampled, %stored_tokens, %given_tokens : tensor<1xi1>, tensor<1xi32>
    %new_history = "stablehlo.scatter"(%history, %history_index, %token_ids) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<i32>, %new: tensor<i32>):
      stablehlo.return %new : tensor<i32>
    }) : (tensor<?xi32>, tensor<1x1xi32>, tensor<1xi32>) -> tensor<?xi32>

    // row of each token in the KV pool
    %slots = stablehlo.slice %batch [65:66] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_start = stablehlo.multiply %slots, %slot_pages : tensor<1xi32>
    %page_table = stablehlo.constant dense<96> : tensor<1xi32>
    %slot_page_table = stablehlo.add %slot_start, %page_table : tensor<1xi32>
    %page_size = stablehlo.constant dense<16> : tensor<1xi32>
    %page_number = stablehlo.divide %positions, %page_size : tensor<1xi32>
    %page_at = stablehlo.add %slot_page_table, %page_number : tensor<1xi32>
    %page_index = stablehlo.reshape %page_at : (tensor<1xi32>) -> tensor<1x1xi32>
    %page = "stablehlo.gather"(%batch, %page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<1x1xi32>) -> tensor<1xi32>
    %scratch_page = stablehlo.constant dense<0> : tensor<1xi32>
    %page_or_scratch = stablehlo.select %is_padding, %scratch_page, %page : tensor<1xi1>, tensor<1xi32>
    %page_rows = stablehlo.constant dense<64> : tensor<1xi32>
    %page_start = stablehlo.multiply %page_or_scratch, %page_rows : tensor<1xi32>
    %index_in_page = stablehlo.remainder %positions, %page_size : tensor<1xi32>
    %kv_rows = stablehlo.add %page_start, %index_in_page : tensor<1xi32>

    // the segment
    %segment_slot = stablehlo.slice %batch [67:68] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages_2 = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_start_2 = stablehlo.multiply %segment_slot, %slot_pages_2 : tensor<1xi32>
    %page_table_2 = stablehlo.constant dense<96> : tensor<1xi32>
    %slot_page_table_2 = stablehlo.add %slot_start_2, %page_table_2 : tensor<1xi32>
    %segment_tokens = stablehlo.slice %batch [69:70] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_position = stablehlo.slice %batch [70:71] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_end = stablehlo.add %segment_position, %segment_tokens : tensor<1xi32>
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %segment_last = stablehlo.subtract %segment_end, %one : tensor<1xi32>
    %zero_3 = stablehlo.constant dense<0> : tensor<1xi32>
    %last_position = stablehlo.maximum %segment_last, %zero_3 : tensor<1xi32>
    %all_weights = util.global.load @"*" : tensor<39072xi32>
    %words_at = arith.constant 0 : index
    %words_count = arith.constant 10240 : index
    %words = flow.tensor.slice %all_weights[%words_at for %words_count] : tensor<39072xi32> -> tensor<10240xi32>
    %model.embed_tokens.weight = flow.tensor.bitcast %words : tensor<10240xi32> -> tensor<320x32xf32>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %token_ids : (tensor<1xi32>) -> tensor<1x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<320x32xf32>, tensor<1x1xi32>) -> tensor<1x32xf32>

    // ---- layer0 ----
    %words_2_at = arith.constant 10240 : index
    %words_2_count = arith.constant 32 : index
    %words_2 = flow.tensor.slice %all_weights[%words_2_at for %words_2_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.input_layernorm.weight = flow.tensor.bitcast %words_2 : tensor<32xi32> -> tensor<32xf32>
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
    %words_3_at = arith.constant 10272 : index
    %words_3_count = arith.constant 1024 : index
    %words_3 = flow.tensor.slice %all_weights[%words_3_at for %words_3_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.q_proj.weight = flow.tensor.bitcast %words_3 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output = stablehlo.dot_general %model.layers.0.self_attn.q_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer0.q = stablehlo.reshape %layer0.by_output : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %words_4_at = arith.constant 11296 : index
    %words_4_count = arith.constant 512 : index
    %words_4 = flow.tensor.slice %all_weights[%words_4_at for %words_4_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.k_proj.weight = flow.tensor.bitcast %words_4 : tensor<512xi32> -> tensor<16x32xf32>
    %layer0.by_output_2 = stablehlo.dot_general %model.layers.0.self_attn.k_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer0.k = stablehlo.reshape %layer0.by_output_2 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %words_5_at = arith.constant 11808 : index
    %words_5_count = arith.constant 512 : index
    %words_5 = flow.tensor.slice %all_weights[%words_5_at for %words_5_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.v_proj.weight = flow.tensor.bitcast %words_5 : tensor<512xi32> -> tensor<16x32xf32>
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
    %layer0.row_index = stablehlo.reshape %kv_rows : (tensor<1xi32>) -> tensor<1x1xi32>
    %layer0.pool = "stablehlo.scatter"(%kv, %layer0.row_index, %layer0.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<1x1xi32>, tensor<1x16xf32>) -> tensor<?x16xf32>
    %layer0.layer_offset = stablehlo.constant dense<16> : tensor<1xi32>
    %layer0.layer_rows = stablehlo.add %kv_rows, %layer0.layer_offset : tensor<1xi32>
    %layer0.row_index_2 = stablehlo.reshape %layer0.layer_rows : (tensor<1xi32>) -> tensor<1x1xi32>
    %layer0.pool_2 = "stablehlo.scatter"(%layer0.pool, %layer0.row_index_2, %layer0.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<1x1xi32>, tensor<1x16xf32>) -> tensor<?x16xf32>
    %layer0.query = stablehlo.reshape %layer0.q_rope : (tensor<1x32xf32>) -> tensor<1x2x2x8xf32>
    %layer0.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x2x2x8xf32>
    %layer0.scaled_query = stablehlo.multiply %layer0.query, %layer0.scale : tensor<1x2x2x8xf32>
    %layer0.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x1x2xf32>
    %layer0.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x1x2xf32>
    %layer0.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x1x2x8xf32>
    %layer0.each_chunk_first = arith.constant 0 : index
    %layer0.each_chunk_step = arith.constant 1 : index
    %layer0.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer0.each_chunk:3 = scf.for %layer0.each_chunk_at = %layer0.each_chunk_first to %layer0.each_chunk_end step %layer0.each_chunk_step iter_args(%layer0.carried = %layer0.no_score, %layer0.carried_2 = %layer0.weight_start, %layer0.carried_3 = %layer0.sum_start) -> (tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<2x1x2x8xf32>) {
    %layer0.each_chunk_i32 = arith.index_cast %layer0.each_chunk_at : index to i32
    %layer0.iteration = tensor.from_elements %layer0.each_chunk_i32 : tensor<i32>
    %layer0.chunk = stablehlo.broadcast_in_dim %layer0.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer0.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer0.chunk_start = stablehlo.multiply %layer0.chunk, %layer0.chunk_size : tensor<256xi32>
    %layer0.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer0.key_positions = stablehlo.add %layer0.chunk_start, %layer0.nth_position : tensor<256xi32>
    %layer0.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.written_position = stablehlo.minimum %layer0.key_positions, %layer0.last : tensor<256xi32>
    %layer0.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.page_number = stablehlo.divide %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.page_at = stablehlo.add %layer0.first_page, %layer0.page_number : tensor<256xi32>
    %layer0.page_index = stablehlo.reshape %layer0.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.page = "stablehlo.gather"(%batch, %layer0.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer0.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer0.page_start = stablehlo.multiply %layer0.page, %layer0.page_rows : tensor<256xi32>
    %layer0.index_in_page = stablehlo.remainder %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.chunk_rows = stablehlo.add %layer0.page_start, %layer0.index_in_page : tensor<256xi32>
    %layer0.row_index_3 = stablehlo.reshape %layer0.chunk_rows : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.keys = stablehlo.reshape %layer0.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.layer_offset_2 = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.layer_rows_2 = stablehlo.add %layer0.chunk_rows, %layer0.layer_offset_2 : tensor<256xi32>
    %layer0.row_index_4 = stablehlo.reshape %layer0.layer_rows_2 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows_2 = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.values = stablehlo.reshape %layer0.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.scores = stablehlo.dot_general %layer0.scaled_query, %layer0.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<1x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x1x2x256xf32>
    %layer0.key_position = stablehlo.broadcast_in_dim %layer0.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<1x256xi32>
    %layer0.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<1xi32>) -> tensor<1x256xi32>
    %layer0.is_later = stablehlo.compare GT, %layer0.key_position, %layer0.query_position : (tensor<1x256xi32>, tensor<1x256xi32>) -> tensor<1x256xi1>
    %layer0.mask = stablehlo.broadcast_in_dim %layer0.is_later, dims = [1, 3] : (tensor<1x256xi1>) -> tensor<2x1x2x256xi1>
    %layer0.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x1x2x256xf32>  // -inf
    %layer0.masked_scores = stablehlo.select %layer0.mask, %layer0.minus_infinity, %layer0.scores : tensor<2x1x2x256xi1>, tensor<2x1x2x256xf32>
    %layer0.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer0.chunk_max = stablehlo.reduce(%layer0.masked_scores init: %layer0.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x2x256xf32>, tensor<f32>) -> tensor<2x1x2xf32>
    %layer0.max_score = stablehlo.maximum %layer0.carried, %layer0.chunk_max : tensor<2x1x2xf32>
    %layer0.max_change = stablehlo.subtract %layer0.carried, %layer0.max_score : tensor<2x1x2xf32>
    %layer0.rescale = stablehlo.exponential %layer0.max_change : tensor<2x1x2xf32>
    %layer0.max_scores = stablehlo.broadcast_in_dim %layer0.max_score, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x256xf32>
    %layer0.minus_max = stablehlo.subtract %layer0.masked_scores, %layer0.max_scores : tensor<2x1x2x256xf32>
    %layer0.weights = stablehlo.exponential %layer0.minus_max : tensor<2x1x2x256xf32>
    %layer0.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.chunk_weight = stablehlo.reduce(%layer0.weights init: %layer0.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x1x2x256xf32>, tensor<f32>) -> tensor<2x1x2xf32>
    %layer0.old_weight = stablehlo.multiply %layer0.carried_2, %layer0.rescale : tensor<2x1x2xf32>
    %layer0.weight = stablehlo.add %layer0.old_weight, %layer0.chunk_weight : tensor<2x1x2xf32>
    %layer0.weighted_values = stablehlo.dot_general %layer0.weights, %layer0.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x1x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x1x2x8xf32>
    %layer0.rescales = stablehlo.broadcast_in_dim %layer0.rescale, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x8xf32>
    %layer0.old_sum = stablehlo.multiply %layer0.carried_3, %layer0.rescales : tensor<2x1x2x8xf32>
    %layer0.sum = stablehlo.add %layer0.old_sum, %layer0.weighted_values : tensor<2x1x2x8xf32>
    scf.yield %layer0.max_score, %layer0.weight, %layer0.sum : tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<2x1x2x8xf32>
    }
    %layer0.total_weight = stablehlo.broadcast_in_dim %layer0.each_chunk#1, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x8xf32>
    %layer0.by_kv_head = stablehlo.divide %layer0.each_chunk#2, %layer0.total_weight : tensor<2x1x2x8xf32>
    %layer0.by_token = stablehlo.transpose %layer0.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x1x2x8xf32>) -> tensor<1x2x2x8xf32>
    %layer0.attended = stablehlo.reshape %layer0.by_token : (tensor<1x2x2x8xf32>) -> tensor<1x32xf32>
    %words_6_at = arith.constant 12320 : index
    %words_6_count = arith.constant 1024 : index
    %words_6 = flow.tensor.slice %all_weights[%words_6_at for %words_6_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.o_proj.weight = flow.tensor.bitcast %words_6 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output_4 = stablehlo.dot_general %model.layers.0.self_attn.o_proj.weight, %layer0.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer0.o = stablehlo.reshape %layer0.by_output_4 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer0.after_attn = stablehlo.add %embedded, %layer0.o : tensor<1x32xf32>
    %words_7_at = arith.constant 13344 : index
    %words_7_count = arith.constant 32 : index
    %words_7 = flow.tensor.slice %all_weights[%words_7_at for %words_7_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.post_attention_layernorm.weight = flow.tensor.bitcast %words_7 : tensor<32xi32> -> tensor<32xf32>
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
    %words_8_at = arith.constant 13376 : index
    %words_8_count = arith.constant 2048 : index
    %words_8 = flow.tensor.slice %all_weights[%words_8_at for %words_8_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.gate_proj.weight = flow.tensor.bitcast %words_8 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_5 = stablehlo.dot_general %model.layers.0.mlp.gate_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer0.gate = stablehlo.reshape %layer0.by_output_5 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %words_9_at = arith.constant 15424 : index
    %words_9_count = arith.constant 2048 : index
    %words_9 = flow.tensor.slice %all_weights[%words_9_at for %words_9_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.up_proj.weight = flow.tensor.bitcast %words_9 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_6 = stablehlo.dot_general %model.layers.0.mlp.up_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer0.up = stablehlo.reshape %layer0.by_output_6 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %layer0.sigmoid = stablehlo.logistic %layer0.gate : tensor<1x64xf32>
    %layer0.silu = stablehlo.multiply %layer0.gate, %layer0.sigmoid : tensor<1x64xf32>
    %layer0.act = stablehlo.multiply %layer0.silu, %layer0.up : tensor<1x64xf32>
    %words_10_at = arith.constant 17472 : index
    %words_10_count = arith.constant 2048 : index
    %words_10 = flow.tensor.slice %all_weights[%words_10_at for %words_10_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.down_proj.weight = flow.tensor.bitcast %words_10 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer0.by_output_7 = stablehlo.dot_general %model.layers.0.mlp.down_proj.weight, %layer0.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<1x64xf32>) -> tensor<32x1xf32>
    %layer0.down = stablehlo.reshape %layer0.by_output_7 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer0.out = stablehlo.add %layer0.after_attn, %layer0.down : tensor<1x32xf32>

    // ---- layer1 ----
    %words_11_at = arith.constant 19520 : index
    %words_11_count = arith.constant 32 : index
    %words_11 = flow.tensor.slice %all_weights[%words_11_at for %words_11_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.input_layernorm.weight = flow.tensor.bitcast %words_11 : tensor<32xi32> -> tensor<32xf32>
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
    %words_12_at = arith.constant 19552 : index
    %words_12_count = arith.constant 1024 : index
    %words_12 = flow.tensor.slice %all_weights[%words_12_at for %words_12_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.q_proj.weight = flow.tensor.bitcast %words_12 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output = stablehlo.dot_general %model.layers.1.self_attn.q_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer1.q = stablehlo.reshape %layer1.by_output : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %words_13_at = arith.constant 20576 : index
    %words_13_count = arith.constant 512 : index
    %words_13 = flow.tensor.slice %all_weights[%words_13_at for %words_13_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.k_proj.weight = flow.tensor.bitcast %words_13 : tensor<512xi32> -> tensor<16x32xf32>
    %layer1.by_output_2 = stablehlo.dot_general %model.layers.1.self_attn.k_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<1x32xf32>) -> tensor<16x1xf32>
    %layer1.k = stablehlo.reshape %layer1.by_output_2 : (tensor<16x1xf32>) -> tensor<1x16xf32>
    %words_14_at = arith.constant 21088 : index
    %words_14_count = arith.constant 512 : index
    %words_14 = flow.tensor.slice %all_weights[%words_14_at for %words_14_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.v_proj.weight = flow.tensor.bitcast %words_14 : tensor<512xi32> -> tensor<16x32xf32>
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
    %layer1.layer_offset = stablehlo.constant dense<32> : tensor<1xi32>
    %layer1.layer_rows = stablehlo.add %kv_rows, %layer1.layer_offset : tensor<1xi32>
    %layer1.row_index = stablehlo.reshape %layer1.layer_rows : (tensor<1xi32>) -> tensor<1x1xi32>
    %layer1.pool = "stablehlo.scatter"(%layer0.pool_2, %layer1.row_index, %layer1.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<1x1xi32>, tensor<1x16xf32>) -> tensor<?x16xf32>
    %layer1.layer_offset_2 = stablehlo.constant dense<48> : tensor<1xi32>
    %layer1.layer_rows_2 = stablehlo.add %kv_rows, %layer1.layer_offset_2 : tensor<1xi32>
    %layer1.row_index_2 = stablehlo.reshape %layer1.layer_rows_2 : (tensor<1xi32>) -> tensor<1x1xi32>
    %layer1.pool_2 = "stablehlo.scatter"(%layer1.pool, %layer1.row_index_2, %layer1.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<1x1xi32>, tensor<1x16xf32>) -> tensor<?x16xf32>
    %layer1.query = stablehlo.reshape %layer1.q_rope : (tensor<1x32xf32>) -> tensor<1x2x2x8xf32>
    %layer1.scale = stablehlo.constant dense<3.535533845e-01> : tensor<1x2x2x8xf32>
    %layer1.scaled_query = stablehlo.multiply %layer1.query, %layer1.scale : tensor<1x2x2x8xf32>
    %layer1.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x1x2xf32>
    %layer1.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x1x2xf32>
    %layer1.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x1x2x8xf32>
    %layer1.each_chunk_first = arith.constant 0 : index
    %layer1.each_chunk_step = arith.constant 1 : index
    %layer1.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer1.each_chunk:3 = scf.for %layer1.each_chunk_at = %layer1.each_chunk_first to %layer1.each_chunk_end step %layer1.each_chunk_step iter_args(%layer1.carried = %layer1.no_score, %layer1.carried_2 = %layer1.weight_start, %layer1.carried_3 = %layer1.sum_start) -> (tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<2x1x2x8xf32>) {
    %layer1.each_chunk_i32 = arith.index_cast %layer1.each_chunk_at : index to i32
    %layer1.iteration = tensor.from_elements %layer1.each_chunk_i32 : tensor<i32>
    %layer1.chunk = stablehlo.broadcast_in_dim %layer1.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer1.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer1.chunk_start = stablehlo.multiply %layer1.chunk, %layer1.chunk_size : tensor<256xi32>
    %layer1.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer1.key_positions = stablehlo.add %layer1.chunk_start, %layer1.nth_position : tensor<256xi32>
    %layer1.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.written_position = stablehlo.minimum %layer1.key_positions, %layer1.last : tensor<256xi32>
    %layer1.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer1.page_number = stablehlo.divide %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.page_at = stablehlo.add %layer1.first_page, %layer1.page_number : tensor<256xi32>
    %layer1.page_index = stablehlo.reshape %layer1.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.page = "stablehlo.gather"(%batch, %layer1.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer1.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer1.page_start = stablehlo.multiply %layer1.page, %layer1.page_rows : tensor<256xi32>
    %layer1.index_in_page = stablehlo.remainder %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.chunk_rows = stablehlo.add %layer1.page_start, %layer1.index_in_page : tensor<256xi32>
    %layer1.layer_offset_3 = stablehlo.constant dense<32> : tensor<256xi32>
    %layer1.layer_rows_3 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_3 : tensor<256xi32>
    %layer1.row_index_3 = stablehlo.reshape %layer1.layer_rows_3 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.keys = stablehlo.reshape %layer1.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.layer_offset_4 = stablehlo.constant dense<48> : tensor<256xi32>
    %layer1.layer_rows_4 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_4 : tensor<256xi32>
    %layer1.row_index_4 = stablehlo.reshape %layer1.layer_rows_4 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows_2 = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.values = stablehlo.reshape %layer1.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.scores = stablehlo.dot_general %layer1.scaled_query, %layer1.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<1x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x1x2x256xf32>
    %layer1.key_position = stablehlo.broadcast_in_dim %layer1.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<1x256xi32>
    %layer1.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<1xi32>) -> tensor<1x256xi32>
    %layer1.is_later = stablehlo.compare GT, %layer1.key_position, %layer1.query_position : (tensor<1x256xi32>, tensor<1x256xi32>) -> tensor<1x256xi1>
    %layer1.mask = stablehlo.broadcast_in_dim %layer1.is_later, dims = [1, 3] : (tensor<1x256xi1>) -> tensor<2x1x2x256xi1>
    %layer1.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x1x2x256xf32>  // -inf
    %layer1.masked_scores = stablehlo.select %layer1.mask, %layer1.minus_infinity, %layer1.scores : tensor<2x1x2x256xi1>, tensor<2x1x2x256xf32>
    %layer1.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer1.chunk_max = stablehlo.reduce(%layer1.masked_scores init: %layer1.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x1x2x256xf32>, tensor<f32>) -> tensor<2x1x2xf32>
    %layer1.max_score = stablehlo.maximum %layer1.carried, %layer1.chunk_max : tensor<2x1x2xf32>
    %layer1.max_change = stablehlo.subtract %layer1.carried, %layer1.max_score : tensor<2x1x2xf32>
    %layer1.rescale = stablehlo.exponential %layer1.max_change : tensor<2x1x2xf32>
    %layer1.max_scores = stablehlo.broadcast_in_dim %layer1.max_score, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x256xf32>
    %layer1.minus_max = stablehlo.subtract %layer1.masked_scores, %layer1.max_scores : tensor<2x1x2x256xf32>
    %layer1.weights = stablehlo.exponential %layer1.minus_max : tensor<2x1x2x256xf32>
    %layer1.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.chunk_weight = stablehlo.reduce(%layer1.weights init: %layer1.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x1x2x256xf32>, tensor<f32>) -> tensor<2x1x2xf32>
    %layer1.old_weight = stablehlo.multiply %layer1.carried_2, %layer1.rescale : tensor<2x1x2xf32>
    %layer1.weight = stablehlo.add %layer1.old_weight, %layer1.chunk_weight : tensor<2x1x2xf32>
    %layer1.weighted_values = stablehlo.dot_general %layer1.weights, %layer1.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x1x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x1x2x8xf32>
    %layer1.rescales = stablehlo.broadcast_in_dim %layer1.rescale, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x8xf32>
    %layer1.old_sum = stablehlo.multiply %layer1.carried_3, %layer1.rescales : tensor<2x1x2x8xf32>
    %layer1.sum = stablehlo.add %layer1.old_sum, %layer1.weighted_values : tensor<2x1x2x8xf32>
    scf.yield %layer1.max_score, %layer1.weight, %layer1.sum : tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<2x1x2x8xf32>
    }
    %layer1.total_weight = stablehlo.broadcast_in_dim %layer1.each_chunk#1, dims = [0, 1, 2] : (tensor<2x1x2xf32>) -> tensor<2x1x2x8xf32>
    %layer1.by_kv_head = stablehlo.divide %layer1.each_chunk#2, %layer1.total_weight : tensor<2x1x2x8xf32>
    %layer1.by_token = stablehlo.transpose %layer1.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x1x2x8xf32>) -> tensor<1x2x2x8xf32>
    %layer1.attended = stablehlo.reshape %layer1.by_token : (tensor<1x2x2x8xf32>) -> tensor<1x32xf32>
    %words_15_at = arith.constant 21600 : index
    %words_15_count = arith.constant 1024 : index
    %words_15 = flow.tensor.slice %all_weights[%words_15_at for %words_15_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.o_proj.weight = flow.tensor.bitcast %words_15 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output_4 = stablehlo.dot_general %model.layers.1.self_attn.o_proj.weight, %layer1.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<1x32xf32>) -> tensor<32x1xf32>
    %layer1.o = stablehlo.reshape %layer1.by_output_4 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer1.after_attn = stablehlo.add %layer0.out, %layer1.o : tensor<1x32xf32>
    %words_16_at = arith.constant 22624 : index
    %words_16_count = arith.constant 32 : index
    %words_16 = flow.tensor.slice %all_weights[%words_16_at for %words_16_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.post_attention_layernorm.weight = flow.tensor.bitcast %words_16 : tensor<32xi32> -> tensor<32xf32>
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
    %words_17_at = arith.constant 22656 : index
    %words_17_count = arith.constant 2048 : index
    %words_17 = flow.tensor.slice %all_weights[%words_17_at for %words_17_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.gate_proj.weight = flow.tensor.bitcast %words_17 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_5 = stablehlo.dot_general %model.layers.1.mlp.gate_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer1.gate = stablehlo.reshape %layer1.by_output_5 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %words_18_at = arith.constant 24704 : index
    %words_18_count = arith.constant 2048 : index
    %words_18 = flow.tensor.slice %all_weights[%words_18_at for %words_18_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.up_proj.weight = flow.tensor.bitcast %words_18 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_6 = stablehlo.dot_general %model.layers.1.mlp.up_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<1x32xf32>) -> tensor<64x1xf32>
    %layer1.up = stablehlo.reshape %layer1.by_output_6 : (tensor<64x1xf32>) -> tensor<1x64xf32>
    %layer1.sigmoid = stablehlo.logistic %layer1.gate : tensor<1x64xf32>
    %layer1.silu = stablehlo.multiply %layer1.gate, %layer1.sigmoid : tensor<1x64xf32>
    %layer1.act = stablehlo.multiply %layer1.silu, %layer1.up : tensor<1x64xf32>
    %words_19_at = arith.constant 26752 : index
    %words_19_count = arith.constant 2048 : index
    %words_19 = flow.tensor.slice %all_weights[%words_19_at for %words_19_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.down_proj.weight = flow.tensor.bitcast %words_19 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer1.by_output_7 = stablehlo.dot_general %model.layers.1.mlp.down_proj.weight, %layer1.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<1x64xf32>) -> tensor<32x1xf32>
    %layer1.down = stablehlo.reshape %layer1.by_output_7 : (tensor<32x1xf32>) -> tensor<1x32xf32>
    %layer1.out = stablehlo.add %layer1.after_attn, %layer1.down : tensor<1x32xf32>
    %words_20_at = arith.constant 28800 : index
    %words_20_count = arith.constant 32 : index
    %words_20 = flow.tensor.slice %all_weights[%words_20_at for %words_20_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.norm.weight = flow.tensor.bitcast %words_20 : tensor<32xi32> -> tensor<32xf32>
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

    // hidden states of the tokens whose logits are wanted
    %wanted = "stablehlo.gather"(%final, %wanted_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<1x32xf32>, tensor<1x1xi32>) -> tensor<1x32xf32>
    %new_hidden = tensor.insert_slice %wanted into %hidden[0, 0] [1, 32] [1, 1] : tensor<1x32xf32> into tensor<?x32xf32>
    %words_21_at = arith.constant 28832 : index
    %words_21_count = arith.constant 10240 : index
    %words_21 = flow.tensor.slice %all_weights[%words_21_at for %words_21_count] : tensor<39072xi32> -> tensor<10240xi32>
    %lm_head.weight = flow.tensor.bitcast %words_21 : tensor<10240xi32> -> tensor<320x32xf32>
    %by_output = stablehlo.dot_general %lm_head.weight, %wanted, contracting_dims = [1] x [1] : (tensor<320x32xf32>, tensor<1x32xf32>) -> tensor<320x1xf32>
    %logits_2 = stablehlo.reshape %by_output : (tensor<320x1xf32>) -> tensor<1x320xf32>
    %new_logits = tensor.insert_slice %logits_2 into %logits[0, 0] [1, 320] [1, 1] : tensor<1x320xf32> into tensor<?x320xf32>
    return %new_history, %layer1.pool_2, %new_logits, %new_hidden, %results : tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>
  }

  // A forward pass over the tokens of |batch|.
  func.func @step_16(
      %batch: tensor<?xi32>,
      %history: tensor<?xi32> {iree.abi.output = 0 : index},
      %kv: tensor<?x16xf32> {iree.abi.output = 1 : index},
      %logits: tensor<?x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<?x32xf32> {iree.abi.output = 3 : index},
      %results: tensor<?x48xi32> {iree.abi.output = 4 : index},
      %chunks: i32) -> (tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>) {
    %batch_dim = arith.constant 0 : index
    %batch_size = tensor.dim %batch, %batch_dim : tensor<?xi32>
    %history_dim = arith.constant 0 : index
    %history_size = tensor.dim %history, %history_dim : tensor<?xi32>
    %kv_dim = arith.constant 0 : index
    %kv_size = tensor.dim %kv, %kv_dim : tensor<?x16xf32>
    %logits_dim = arith.constant 0 : index
    %logits_size = tensor.dim %logits, %logits_dim : tensor<?x320xf32>
    %hidden_dim = arith.constant 0 : index
    %hidden_size = tensor.dim %hidden, %hidden_dim : tensor<?x32xf32>
    %results_dim = arith.constant 0 : index
    %results_size = tensor.dim %results, %results_dim : tensor<?x48xi32>
    %given_position = stablehlo.slice %batch [96:112] : (tensor<?xi32>) -> tensor<16xi32>
    %zero = stablehlo.constant dense<0> : tensor<16xi32>
    %is_padding = stablehlo.compare LT, %given_position, %zero : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %position = stablehlo.slice %batch [96:112] : (tensor<?xi32>) -> tensor<16xi32>
    %zero_2 = stablehlo.constant dense<0> : tensor<16xi32>
    %positions = stablehlo.maximum %position, %zero_2 : tensor<16xi32>
    %wanted_tokens = stablehlo.slice %batch [176:192] : (tensor<?xi32>) -> tensor<16xi32>
    %wanted_index = stablehlo.reshape %wanted_tokens : (tensor<16xi32>) -> tensor<16x1xi32>

    // token IDs: given, or sampled by an earlier step
    %given_tokens = stablehlo.slice %batch [64:80] : (tensor<?xi32>) -> tensor<16xi32>
    %of_token_0 = stablehlo.slice %batch [64:65] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_2 = stablehlo.broadcast_in_dim %of_token_0, dims = [0] : (tensor<1xi32>) -> tensor<16xi32>
    %not_padding = stablehlo.select %is_padding, %of_token_0_2, %given_tokens : tensor<16xi1>, tensor<16xi32>
    %history_slots = stablehlo.slice %batch [80:96] : (tensor<?xi32>) -> tensor<16xi32>
    %of_token_0_3 = stablehlo.slice %batch [80:81] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_4 = stablehlo.broadcast_in_dim %of_token_0_3, dims = [0] : (tensor<1xi32>) -> tensor<16xi32>
    %not_padding_2 = stablehlo.select %is_padding, %of_token_0_4, %history_slots : tensor<16xi1>, tensor<16xi32>
    %history_positions = stablehlo.slice %batch [96:112] : (tensor<?xi32>) -> tensor<16xi32>
    %of_token_0_5 = stablehlo.slice %batch [96:97] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_6 = stablehlo.broadcast_in_dim %of_token_0_5, dims = [0] : (tensor<1xi32>) -> tensor<16xi32>
    %not_padding_3 = stablehlo.select %is_padding, %of_token_0_6, %history_positions : tensor<16xi1>, tensor<16xi32>
    %history_width = stablehlo.slice %batch [6:7] : (tensor<?xi32>) -> tensor<1xi32>
    %history_width_2 = stablehlo.broadcast_in_dim %history_width, dims = [0] : (tensor<1xi32>) -> tensor<16xi32>
    %history_start = stablehlo.multiply %not_padding_2, %history_width_2 : tensor<16xi32>
    %history_at = stablehlo.add %history_start, %not_padding_3 : tensor<16xi32>
    %history_index = stablehlo.reshape %history_at : (tensor<16xi32>) -> tensor<16x1xi32>
    %stored_tokens = "stablehlo.gather"(%history, %history_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<16x1xi32>) -> tensor<16xi32>
    %sampled = stablehlo.constant dense<-1> : tensor<16xi32>
    %is_sampled = stablehlo.compare EQ, %not_padding, %sampled : (tensor<16xi32>, tensor<16xi32>) -> tensor<16xi1>
    %token_ids = stablehlo.select %is_sampled, %stored_tokens, %not_padding : tensor<16xi1>, tensor<16xi32>
    %new_history = "stablehlo.scatter"(%history, %history_index, %token_ids) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<i32>, %new: tensor<i32>):
      stablehlo.return %new : tensor<i32>
    }) : (tensor<?xi32>, tensor<16x1xi32>, tensor<16xi32>) -> tensor<?xi32>

    // row of each token in the KV pool
    %slots = stablehlo.slice %batch [80:96] : (tensor<?xi32>) -> tensor<16xi32>
    %slot_pages = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages_2 = stablehlo.broadcast_in_dim %slot_pages, dims = [0] : (tensor<1xi32>) -> tensor<16xi32>
    %slot_start = stablehlo.multiply %slots, %slot_pages_2 : tensor<16xi32>
    %page_table = stablehlo.constant dense<576> : tensor<16xi32>
    %slot_page_table = stablehlo.add %slot_start, %page_table : tensor<16xi32>
    %page_size = stablehlo.constant dense<16> : tensor<16xi32>
    %page_number = stablehlo.divide %positions, %page_size : tensor<16xi32>
    %page_at = stablehlo.add %slot_page_table, %page_number : tensor<16xi32>
    %page_index = stablehlo.reshape %page_at : (tensor<16xi32>) -> tensor<16x1xi32>
    %page = "stablehlo.gather"(%batch, %page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<16x1xi32>) -> tensor<16xi32>
    %scratch_page = stablehlo.constant dense<0> : tensor<16xi32>
    %page_or_scratch = stablehlo.select %is_padding, %scratch_page, %page : tensor<16xi1>, tensor<16xi32>
    %page_rows = stablehlo.constant dense<64> : tensor<16xi32>
    %page_start = stablehlo.multiply %page_or_scratch, %page_rows : tensor<16xi32>
    %index_in_page = stablehlo.remainder %positions, %page_size : tensor<16xi32>
    %kv_rows = stablehlo.add %page_start, %index_in_page : tensor<16xi32>

    // the segment
    %segment_slot = stablehlo.slice %batch [112:113] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages_3 = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_start_2 = stablehlo.multiply %segment_slot, %slot_pages_3 : tensor<1xi32>
    %page_table_2 = stablehlo.constant dense<576> : tensor<1xi32>
    %slot_page_table_2 = stablehlo.add %slot_start_2, %page_table_2 : tensor<1xi32>
    %segment_tokens = stablehlo.slice %batch [114:115] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_position = stablehlo.slice %batch [115:116] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_end = stablehlo.add %segment_position, %segment_tokens : tensor<1xi32>
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %segment_last = stablehlo.subtract %segment_end, %one : tensor<1xi32>
    %zero_3 = stablehlo.constant dense<0> : tensor<1xi32>
    %last_position = stablehlo.maximum %segment_last, %zero_3 : tensor<1xi32>
    %all_weights = util.global.load @"*" : tensor<39072xi32>
    %words_at = arith.constant 0 : index
    %words_count = arith.constant 10240 : index
    %words = flow.tensor.slice %all_weights[%words_at for %words_count] : tensor<39072xi32> -> tensor<10240xi32>
    %model.embed_tokens.weight = flow.tensor.bitcast %words : tensor<10240xi32> -> tensor<320x32xf32>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %token_ids : (tensor<16xi32>) -> tensor<16x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<320x32xf32>, tensor<16x1xi32>) -> tensor<16x32xf32>

    // ---- layer0 ----
    %words_2_at = arith.constant 10240 : index
    %words_2_count = arith.constant 32 : index
    %words_2 = flow.tensor.slice %all_weights[%words_2_at for %words_2_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.input_layernorm.weight = flow.tensor.bitcast %words_2 : tensor<32xi32> -> tensor<32xf32>
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
    %words_3_at = arith.constant 10272 : index
    %words_3_count = arith.constant 1024 : index
    %words_3 = flow.tensor.slice %all_weights[%words_3_at for %words_3_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.q_proj.weight = flow.tensor.bitcast %words_3 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output = stablehlo.dot_general %model.layers.0.self_attn.q_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer0.q = stablehlo.transpose %layer0.by_output, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %words_4_at = arith.constant 11296 : index
    %words_4_count = arith.constant 512 : index
    %words_4 = flow.tensor.slice %all_weights[%words_4_at for %words_4_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.k_proj.weight = flow.tensor.bitcast %words_4 : tensor<512xi32> -> tensor<16x32xf32>
    %layer0.by_output_2 = stablehlo.dot_general %model.layers.0.self_attn.k_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer0.k = stablehlo.transpose %layer0.by_output_2, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %words_5_at = arith.constant 11808 : index
    %words_5_count = arith.constant 512 : index
    %words_5 = flow.tensor.slice %all_weights[%words_5_at for %words_5_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.v_proj.weight = flow.tensor.bitcast %words_5 : tensor<512xi32> -> tensor<16x32xf32>
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
    %layer0.row_index = stablehlo.reshape %kv_rows : (tensor<16xi32>) -> tensor<16x1xi32>
    %layer0.pool = "stablehlo.scatter"(%kv, %layer0.row_index, %layer0.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<16x1xi32>, tensor<16x16xf32>) -> tensor<?x16xf32>
    %layer0.layer_offset = stablehlo.constant dense<16> : tensor<16xi32>
    %layer0.layer_rows = stablehlo.add %kv_rows, %layer0.layer_offset : tensor<16xi32>
    %layer0.row_index_2 = stablehlo.reshape %layer0.layer_rows : (tensor<16xi32>) -> tensor<16x1xi32>
    %layer0.pool_2 = "stablehlo.scatter"(%layer0.pool, %layer0.row_index_2, %layer0.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<16x1xi32>, tensor<16x16xf32>) -> tensor<?x16xf32>
    %layer0.query = stablehlo.reshape %layer0.q_rope : (tensor<16x32xf32>) -> tensor<16x2x2x8xf32>
    %layer0.scale = stablehlo.constant dense<3.535533845e-01> : tensor<16x2x2x8xf32>
    %layer0.scaled_query = stablehlo.multiply %layer0.query, %layer0.scale : tensor<16x2x2x8xf32>
    %layer0.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x16x2xf32>
    %layer0.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x16x2xf32>
    %layer0.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x16x2x8xf32>
    %layer0.each_chunk_first = arith.constant 0 : index
    %layer0.each_chunk_step = arith.constant 1 : index
    %layer0.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer0.each_chunk:3 = scf.for %layer0.each_chunk_at = %layer0.each_chunk_first to %layer0.each_chunk_end step %layer0.each_chunk_step iter_args(%layer0.carried = %layer0.no_score, %layer0.carried_2 = %layer0.weight_start, %layer0.carried_3 = %layer0.sum_start) -> (tensor<2x16x2xf32>, tensor<2x16x2xf32>, tensor<2x16x2x8xf32>) {
    %layer0.each_chunk_i32 = arith.index_cast %layer0.each_chunk_at : index to i32
    %layer0.iteration = tensor.from_elements %layer0.each_chunk_i32 : tensor<i32>
    %layer0.chunk = stablehlo.broadcast_in_dim %layer0.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer0.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer0.chunk_start = stablehlo.multiply %layer0.chunk, %layer0.chunk_size : tensor<256xi32>
    %layer0.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer0.key_positions = stablehlo.add %layer0.chunk_start, %layer0.nth_position : tensor<256xi32>
    %layer0.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.written_position = stablehlo.minimum %layer0.key_positions, %layer0.last : tensor<256xi32>
    %layer0.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.page_number = stablehlo.divide %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.page_at = stablehlo.add %layer0.first_page, %layer0.page_number : tensor<256xi32>
    %layer0.page_index = stablehlo.reshape %layer0.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.page = "stablehlo.gather"(%batch, %layer0.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer0.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer0.page_start = stablehlo.multiply %layer0.page, %layer0.page_rows : tensor<256xi32>
    %layer0.index_in_page = stablehlo.remainder %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.chunk_rows = stablehlo.add %layer0.page_start, %layer0.index_in_page : tensor<256xi32>
    %layer0.row_index_3 = stablehlo.reshape %layer0.chunk_rows : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.keys = stablehlo.reshape %layer0.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.layer_offset_2 = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.layer_rows_2 = stablehlo.add %layer0.chunk_rows, %layer0.layer_offset_2 : tensor<256xi32>
    %layer0.row_index_4 = stablehlo.reshape %layer0.layer_rows_2 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows_2 = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.values = stablehlo.reshape %layer0.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.scores = stablehlo.dot_general %layer0.scaled_query, %layer0.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<16x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x16x2x256xf32>
    %layer0.key_position = stablehlo.broadcast_in_dim %layer0.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<16x256xi32>
    %layer0.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<16xi32>) -> tensor<16x256xi32>
    %layer0.is_later = stablehlo.compare GT, %layer0.key_position, %layer0.query_position : (tensor<16x256xi32>, tensor<16x256xi32>) -> tensor<16x256xi1>
    %layer0.mask = stablehlo.broadcast_in_dim %layer0.is_later, dims = [1, 3] : (tensor<16x256xi1>) -> tensor<2x16x2x256xi1>
    %layer0.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x16x2x256xf32>  // -inf
    %layer0.masked_scores = stablehlo.select %layer0.mask, %layer0.minus_infinity, %layer0.scores : tensor<2x16x2x256xi1>, tensor<2x16x2x256xf32>
    %layer0.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer0.chunk_max = stablehlo.reduce(%layer0.masked_scores init: %layer0.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x16x2x256xf32>, tensor<f32>) -> tensor<2x16x2xf32>
    %layer0.max_score = stablehlo.maximum %layer0.carried, %layer0.chunk_max : tensor<2x16x2xf32>
    %layer0.max_change = stablehlo.subtract %layer0.carried, %layer0.max_score : tensor<2x16x2xf32>
    %layer0.rescale = stablehlo.exponential %layer0.max_change : tensor<2x16x2xf32>
    %layer0.max_scores = stablehlo.broadcast_in_dim %layer0.max_score, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x256xf32>
    %layer0.minus_max = stablehlo.subtract %layer0.masked_scores, %layer0.max_scores : tensor<2x16x2x256xf32>
    %layer0.weights = stablehlo.exponential %layer0.minus_max : tensor<2x16x2x256xf32>
    %layer0.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.chunk_weight = stablehlo.reduce(%layer0.weights init: %layer0.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x16x2x256xf32>, tensor<f32>) -> tensor<2x16x2xf32>
    %layer0.old_weight = stablehlo.multiply %layer0.carried_2, %layer0.rescale : tensor<2x16x2xf32>
    %layer0.weight = stablehlo.add %layer0.old_weight, %layer0.chunk_weight : tensor<2x16x2xf32>
    %layer0.weighted_values = stablehlo.dot_general %layer0.weights, %layer0.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x16x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x16x2x8xf32>
    %layer0.rescales = stablehlo.broadcast_in_dim %layer0.rescale, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x8xf32>
    %layer0.old_sum = stablehlo.multiply %layer0.carried_3, %layer0.rescales : tensor<2x16x2x8xf32>
    %layer0.sum = stablehlo.add %layer0.old_sum, %layer0.weighted_values : tensor<2x16x2x8xf32>
    scf.yield %layer0.max_score, %layer0.weight, %layer0.sum : tensor<2x16x2xf32>, tensor<2x16x2xf32>, tensor<2x16x2x8xf32>
    }
    %layer0.total_weight = stablehlo.broadcast_in_dim %layer0.each_chunk#1, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x8xf32>
    %layer0.by_kv_head = stablehlo.divide %layer0.each_chunk#2, %layer0.total_weight : tensor<2x16x2x8xf32>
    %layer0.by_token = stablehlo.transpose %layer0.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x16x2x8xf32>) -> tensor<16x2x2x8xf32>
    %layer0.attended = stablehlo.reshape %layer0.by_token : (tensor<16x2x2x8xf32>) -> tensor<16x32xf32>
    %words_6_at = arith.constant 12320 : index
    %words_6_count = arith.constant 1024 : index
    %words_6 = flow.tensor.slice %all_weights[%words_6_at for %words_6_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.o_proj.weight = flow.tensor.bitcast %words_6 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output_4 = stablehlo.dot_general %model.layers.0.self_attn.o_proj.weight, %layer0.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer0.o = stablehlo.transpose %layer0.by_output_4, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer0.after_attn = stablehlo.add %embedded, %layer0.o : tensor<16x32xf32>
    %words_7_at = arith.constant 13344 : index
    %words_7_count = arith.constant 32 : index
    %words_7 = flow.tensor.slice %all_weights[%words_7_at for %words_7_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.post_attention_layernorm.weight = flow.tensor.bitcast %words_7 : tensor<32xi32> -> tensor<32xf32>
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
    %words_8_at = arith.constant 13376 : index
    %words_8_count = arith.constant 2048 : index
    %words_8 = flow.tensor.slice %all_weights[%words_8_at for %words_8_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.gate_proj.weight = flow.tensor.bitcast %words_8 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_5 = stablehlo.dot_general %model.layers.0.mlp.gate_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer0.gate = stablehlo.transpose %layer0.by_output_5, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %words_9_at = arith.constant 15424 : index
    %words_9_count = arith.constant 2048 : index
    %words_9 = flow.tensor.slice %all_weights[%words_9_at for %words_9_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.up_proj.weight = flow.tensor.bitcast %words_9 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_6 = stablehlo.dot_general %model.layers.0.mlp.up_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer0.up = stablehlo.transpose %layer0.by_output_6, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %layer0.sigmoid = stablehlo.logistic %layer0.gate : tensor<16x64xf32>
    %layer0.silu = stablehlo.multiply %layer0.gate, %layer0.sigmoid : tensor<16x64xf32>
    %layer0.act = stablehlo.multiply %layer0.silu, %layer0.up : tensor<16x64xf32>
    %words_10_at = arith.constant 17472 : index
    %words_10_count = arith.constant 2048 : index
    %words_10 = flow.tensor.slice %all_weights[%words_10_at for %words_10_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.down_proj.weight = flow.tensor.bitcast %words_10 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer0.by_output_7 = stablehlo.dot_general %model.layers.0.mlp.down_proj.weight, %layer0.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<16x64xf32>) -> tensor<32x16xf32>
    %layer0.down = stablehlo.transpose %layer0.by_output_7, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer0.out = stablehlo.add %layer0.after_attn, %layer0.down : tensor<16x32xf32>

    // ---- layer1 ----
    %words_11_at = arith.constant 19520 : index
    %words_11_count = arith.constant 32 : index
    %words_11 = flow.tensor.slice %all_weights[%words_11_at for %words_11_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.input_layernorm.weight = flow.tensor.bitcast %words_11 : tensor<32xi32> -> tensor<32xf32>
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
    %words_12_at = arith.constant 19552 : index
    %words_12_count = arith.constant 1024 : index
    %words_12 = flow.tensor.slice %all_weights[%words_12_at for %words_12_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.q_proj.weight = flow.tensor.bitcast %words_12 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output = stablehlo.dot_general %model.layers.1.self_attn.q_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer1.q = stablehlo.transpose %layer1.by_output, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %words_13_at = arith.constant 20576 : index
    %words_13_count = arith.constant 512 : index
    %words_13 = flow.tensor.slice %all_weights[%words_13_at for %words_13_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.k_proj.weight = flow.tensor.bitcast %words_13 : tensor<512xi32> -> tensor<16x32xf32>
    %layer1.by_output_2 = stablehlo.dot_general %model.layers.1.self_attn.k_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x16xf32>
    %layer1.k = stablehlo.transpose %layer1.by_output_2, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %words_14_at = arith.constant 21088 : index
    %words_14_count = arith.constant 512 : index
    %words_14 = flow.tensor.slice %all_weights[%words_14_at for %words_14_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.v_proj.weight = flow.tensor.bitcast %words_14 : tensor<512xi32> -> tensor<16x32xf32>
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
    %layer1.layer_offset = stablehlo.constant dense<32> : tensor<16xi32>
    %layer1.layer_rows = stablehlo.add %kv_rows, %layer1.layer_offset : tensor<16xi32>
    %layer1.row_index = stablehlo.reshape %layer1.layer_rows : (tensor<16xi32>) -> tensor<16x1xi32>
    %layer1.pool = "stablehlo.scatter"(%layer0.pool_2, %layer1.row_index, %layer1.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<16x1xi32>, tensor<16x16xf32>) -> tensor<?x16xf32>
    %layer1.layer_offset_2 = stablehlo.constant dense<48> : tensor<16xi32>
    %layer1.layer_rows_2 = stablehlo.add %kv_rows, %layer1.layer_offset_2 : tensor<16xi32>
    %layer1.row_index_2 = stablehlo.reshape %layer1.layer_rows_2 : (tensor<16xi32>) -> tensor<16x1xi32>
    %layer1.pool_2 = "stablehlo.scatter"(%layer1.pool, %layer1.row_index_2, %layer1.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<16x1xi32>, tensor<16x16xf32>) -> tensor<?x16xf32>
    %layer1.query = stablehlo.reshape %layer1.q_rope : (tensor<16x32xf32>) -> tensor<16x2x2x8xf32>
    %layer1.scale = stablehlo.constant dense<3.535533845e-01> : tensor<16x2x2x8xf32>
    %layer1.scaled_query = stablehlo.multiply %layer1.query, %layer1.scale : tensor<16x2x2x8xf32>
    %layer1.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x16x2xf32>
    %layer1.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x16x2xf32>
    %layer1.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x16x2x8xf32>
    %layer1.each_chunk_first = arith.constant 0 : index
    %layer1.each_chunk_step = arith.constant 1 : index
    %layer1.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer1.each_chunk:3 = scf.for %layer1.each_chunk_at = %layer1.each_chunk_first to %layer1.each_chunk_end step %layer1.each_chunk_step iter_args(%layer1.carried = %layer1.no_score, %layer1.carried_2 = %layer1.weight_start, %layer1.carried_3 = %layer1.sum_start) -> (tensor<2x16x2xf32>, tensor<2x16x2xf32>, tensor<2x16x2x8xf32>) {
    %layer1.each_chunk_i32 = arith.index_cast %layer1.each_chunk_at : index to i32
    %layer1.iteration = tensor.from_elements %layer1.each_chunk_i32 : tensor<i32>
    %layer1.chunk = stablehlo.broadcast_in_dim %layer1.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer1.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer1.chunk_start = stablehlo.multiply %layer1.chunk, %layer1.chunk_size : tensor<256xi32>
    %layer1.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer1.key_positions = stablehlo.add %layer1.chunk_start, %layer1.nth_position : tensor<256xi32>
    %layer1.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.written_position = stablehlo.minimum %layer1.key_positions, %layer1.last : tensor<256xi32>
    %layer1.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer1.page_number = stablehlo.divide %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.page_at = stablehlo.add %layer1.first_page, %layer1.page_number : tensor<256xi32>
    %layer1.page_index = stablehlo.reshape %layer1.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.page = "stablehlo.gather"(%batch, %layer1.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer1.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer1.page_start = stablehlo.multiply %layer1.page, %layer1.page_rows : tensor<256xi32>
    %layer1.index_in_page = stablehlo.remainder %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.chunk_rows = stablehlo.add %layer1.page_start, %layer1.index_in_page : tensor<256xi32>
    %layer1.layer_offset_3 = stablehlo.constant dense<32> : tensor<256xi32>
    %layer1.layer_rows_3 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_3 : tensor<256xi32>
    %layer1.row_index_3 = stablehlo.reshape %layer1.layer_rows_3 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.keys = stablehlo.reshape %layer1.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.layer_offset_4 = stablehlo.constant dense<48> : tensor<256xi32>
    %layer1.layer_rows_4 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_4 : tensor<256xi32>
    %layer1.row_index_4 = stablehlo.reshape %layer1.layer_rows_4 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows_2 = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.values = stablehlo.reshape %layer1.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.scores = stablehlo.dot_general %layer1.scaled_query, %layer1.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<16x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x16x2x256xf32>
    %layer1.key_position = stablehlo.broadcast_in_dim %layer1.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<16x256xi32>
    %layer1.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<16xi32>) -> tensor<16x256xi32>
    %layer1.is_later = stablehlo.compare GT, %layer1.key_position, %layer1.query_position : (tensor<16x256xi32>, tensor<16x256xi32>) -> tensor<16x256xi1>
    %layer1.mask = stablehlo.broadcast_in_dim %layer1.is_later, dims = [1, 3] : (tensor<16x256xi1>) -> tensor<2x16x2x256xi1>
    %layer1.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x16x2x256xf32>  // -inf
    %layer1.masked_scores = stablehlo.select %layer1.mask, %layer1.minus_infinity, %layer1.scores : tensor<2x16x2x256xi1>, tensor<2x16x2x256xf32>
    %layer1.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer1.chunk_max = stablehlo.reduce(%layer1.masked_scores init: %layer1.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x16x2x256xf32>, tensor<f32>) -> tensor<2x16x2xf32>
    %layer1.max_score = stablehlo.maximum %layer1.carried, %layer1.chunk_max : tensor<2x16x2xf32>
    %layer1.max_change = stablehlo.subtract %layer1.carried, %layer1.max_score : tensor<2x16x2xf32>
    %layer1.rescale = stablehlo.exponential %layer1.max_change : tensor<2x16x2xf32>
    %layer1.max_scores = stablehlo.broadcast_in_dim %layer1.max_score, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x256xf32>
    %layer1.minus_max = stablehlo.subtract %layer1.masked_scores, %layer1.max_scores : tensor<2x16x2x256xf32>
    %layer1.weights = stablehlo.exponential %layer1.minus_max : tensor<2x16x2x256xf32>
    %layer1.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.chunk_weight = stablehlo.reduce(%layer1.weights init: %layer1.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x16x2x256xf32>, tensor<f32>) -> tensor<2x16x2xf32>
    %layer1.old_weight = stablehlo.multiply %layer1.carried_2, %layer1.rescale : tensor<2x16x2xf32>
    %layer1.weight = stablehlo.add %layer1.old_weight, %layer1.chunk_weight : tensor<2x16x2xf32>
    %layer1.weighted_values = stablehlo.dot_general %layer1.weights, %layer1.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x16x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x16x2x8xf32>
    %layer1.rescales = stablehlo.broadcast_in_dim %layer1.rescale, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x8xf32>
    %layer1.old_sum = stablehlo.multiply %layer1.carried_3, %layer1.rescales : tensor<2x16x2x8xf32>
    %layer1.sum = stablehlo.add %layer1.old_sum, %layer1.weighted_values : tensor<2x16x2x8xf32>
    scf.yield %layer1.max_score, %layer1.weight, %layer1.sum : tensor<2x16x2xf32>, tensor<2x16x2xf32>, tensor<2x16x2x8xf32>
    }
    %layer1.total_weight = stablehlo.broadcast_in_dim %layer1.each_chunk#1, dims = [0, 1, 2] : (tensor<2x16x2xf32>) -> tensor<2x16x2x8xf32>
    %layer1.by_kv_head = stablehlo.divide %layer1.each_chunk#2, %layer1.total_weight : tensor<2x16x2x8xf32>
    %layer1.by_token = stablehlo.transpose %layer1.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x16x2x8xf32>) -> tensor<16x2x2x8xf32>
    %layer1.attended = stablehlo.reshape %layer1.by_token : (tensor<16x2x2x8xf32>) -> tensor<16x32xf32>
    %words_15_at = arith.constant 21600 : index
    %words_15_count = arith.constant 1024 : index
    %words_15 = flow.tensor.slice %all_weights[%words_15_at for %words_15_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.o_proj.weight = flow.tensor.bitcast %words_15 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output_4 = stablehlo.dot_general %model.layers.1.self_attn.o_proj.weight, %layer1.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
    %layer1.o = stablehlo.transpose %layer1.by_output_4, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer1.after_attn = stablehlo.add %layer0.out, %layer1.o : tensor<16x32xf32>
    %words_16_at = arith.constant 22624 : index
    %words_16_count = arith.constant 32 : index
    %words_16 = flow.tensor.slice %all_weights[%words_16_at for %words_16_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.post_attention_layernorm.weight = flow.tensor.bitcast %words_16 : tensor<32xi32> -> tensor<32xf32>
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
    %words_17_at = arith.constant 22656 : index
    %words_17_count = arith.constant 2048 : index
    %words_17 = flow.tensor.slice %all_weights[%words_17_at for %words_17_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.gate_proj.weight = flow.tensor.bitcast %words_17 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_5 = stablehlo.dot_general %model.layers.1.mlp.gate_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer1.gate = stablehlo.transpose %layer1.by_output_5, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %words_18_at = arith.constant 24704 : index
    %words_18_count = arith.constant 2048 : index
    %words_18 = flow.tensor.slice %all_weights[%words_18_at for %words_18_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.up_proj.weight = flow.tensor.bitcast %words_18 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_6 = stablehlo.dot_general %model.layers.1.mlp.up_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<16x32xf32>) -> tensor<64x16xf32>
    %layer1.up = stablehlo.transpose %layer1.by_output_6, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %layer1.sigmoid = stablehlo.logistic %layer1.gate : tensor<16x64xf32>
    %layer1.silu = stablehlo.multiply %layer1.gate, %layer1.sigmoid : tensor<16x64xf32>
    %layer1.act = stablehlo.multiply %layer1.silu, %layer1.up : tensor<16x64xf32>
    %words_19_at = arith.constant 26752 : index
    %words_19_count = arith.constant 2048 : index
    %words_19 = flow.tensor.slice %all_weights[%words_19_at for %words_19_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.down_proj.weight = flow.tensor.bitcast %words_19 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer1.by_output_7 = stablehlo.dot_general %model.layers.1.mlp.down_proj.weight, %layer1.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<16x64xf32>) -> tensor<32x16xf32>
    %layer1.down = stablehlo.transpose %layer1.by_output_7, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %layer1.out = stablehlo.add %layer1.after_attn, %layer1.down : tensor<16x32xf32>
    %words_20_at = arith.constant 28800 : index
    %words_20_count = arith.constant 32 : index
    %words_20 = flow.tensor.slice %all_weights[%words_20_at for %words_20_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.norm.weight = flow.tensor.bitcast %words_20 : tensor<32xi32> -> tensor<32xf32>
    %square = stablehlo.multiply %layer1.out, %layer1.out : tensor<16x32xf32>
    %start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start) applies stablehlo.add across dimensions = [1] : (tensor<16x32xf32>, tensor<f32>) -> tensor<16xf32>
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
    %wanted = "stablehlo.gather"(%final, %wanted_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<16x32xf32>, tensor<16x1xi32>) -> tensor<16x32xf32>
    %new_hidden = tensor.insert_slice %wanted into %hidden[0, 0] [16, 32] [1, 1] : tensor<16x32xf32> into tensor<?x32xf32>
    %words_21_at = arith.constant 28832 : index
    %words_21_count = arith.constant 10240 : index
    %words_21 = flow.tensor.slice %all_weights[%words_21_at for %words_21_count] : tensor<39072xi32> -> tensor<10240xi32>
    %lm_head.weight = flow.tensor.bitcast %words_21 : tensor<10240xi32> -> tensor<320x32xf32>
    %by_output = stablehlo.dot_general %lm_head.weight, %wanted, contracting_dims = [1] x [1] : (tensor<320x32xf32>, tensor<16x32xf32>) -> tensor<320x16xf32>
    %logits_2 = stablehlo.transpose %by_output, dims = [1, 0] : (tensor<320x16xf32>) -> tensor<16x320xf32>
    %new_logits = tensor.insert_slice %logits_2 into %logits[0, 0] [16, 320] [1, 1] : tensor<16x320xf32> into tensor<?x320xf32>
    return %new_history, %layer1.pool_2, %new_logits, %new_hidden, %results : tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>
  }

  // A forward pass over the tokens of |batch|.
  func.func @step_64(
      %batch: tensor<?xi32>,
      %history: tensor<?xi32> {iree.abi.output = 0 : index},
      %kv: tensor<?x16xf32> {iree.abi.output = 1 : index},
      %logits: tensor<?x320xf32> {iree.abi.output = 2 : index},
      %hidden: tensor<?x32xf32> {iree.abi.output = 3 : index},
      %results: tensor<?x48xi32> {iree.abi.output = 4 : index},
      %chunks: i32) -> (tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>) {
    %batch_dim = arith.constant 0 : index
    %batch_size = tensor.dim %batch, %batch_dim : tensor<?xi32>
    %history_dim = arith.constant 0 : index
    %history_size = tensor.dim %history, %history_dim : tensor<?xi32>
    %kv_dim = arith.constant 0 : index
    %kv_size = tensor.dim %kv, %kv_dim : tensor<?x16xf32>
    %logits_dim = arith.constant 0 : index
    %logits_size = tensor.dim %logits, %logits_dim : tensor<?x320xf32>
    %hidden_dim = arith.constant 0 : index
    %hidden_size = tensor.dim %hidden, %hidden_dim : tensor<?x32xf32>
    %results_dim = arith.constant 0 : index
    %results_size = tensor.dim %results, %results_dim : tensor<?x48xi32>
    %given_position = stablehlo.slice %batch [192:256] : (tensor<?xi32>) -> tensor<64xi32>
    %zero = stablehlo.constant dense<0> : tensor<64xi32>
    %is_padding = stablehlo.compare LT, %given_position, %zero : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi1>
    %position = stablehlo.slice %batch [192:256] : (tensor<?xi32>) -> tensor<64xi32>
    %zero_2 = stablehlo.constant dense<0> : tensor<64xi32>
    %positions = stablehlo.maximum %position, %zero_2 : tensor<64xi32>
    %wanted_tokens = stablehlo.slice %batch [512:576] : (tensor<?xi32>) -> tensor<64xi32>
    %wanted_index = stablehlo.reshape %wanted_tokens : (tensor<64xi32>) -> tensor<64x1xi32>

    // token IDs: given, or sampled by an earlier step
    %given_tokens = stablehlo.slice %batch [64:128] : (tensor<?xi32>) -> tensor<64xi32>
    %of_token_0 = stablehlo.slice %batch [64:65] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_2 = stablehlo.broadcast_in_dim %of_token_0, dims = [0] : (tensor<1xi32>) -> tensor<64xi32>
    %not_padding = stablehlo.select %is_padding, %of_token_0_2, %given_tokens : tensor<64xi1>, tensor<64xi32>
    %history_slots = stablehlo.slice %batch [128:192] : (tensor<?xi32>) -> tensor<64xi32>
    %of_token_0_3 = stablehlo.slice %batch [128:129] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_4 = stablehlo.broadcast_in_dim %of_token_0_3, dims = [0] : (tensor<1xi32>) -> tensor<64xi32>
    %not_padding_2 = stablehlo.select %is_padding, %of_token_0_4, %history_slots : tensor<64xi1>, tensor<64xi32>
    %history_positions = stablehlo.slice %batch [192:256] : (tensor<?xi32>) -> tensor<64xi32>
    %of_token_0_5 = stablehlo.slice %batch [192:193] : (tensor<?xi32>) -> tensor<1xi32>
    %of_token_0_6 = stablehlo.broadcast_in_dim %of_token_0_5, dims = [0] : (tensor<1xi32>) -> tensor<64xi32>
    %not_padding_3 = stablehlo.select %is_padding, %of_token_0_6, %history_positions : tensor<64xi1>, tensor<64xi32>
    %history_width = stablehlo.slice %batch [6:7] : (tensor<?xi32>) -> tensor<1xi32>
    %history_width_2 = stablehlo.broadcast_in_dim %history_width, dims = [0] : (tensor<1xi32>) -> tensor<64xi32>
    %history_start = stablehlo.multiply %not_padding_2, %history_width_2 : tensor<64xi32>
    %history_at = stablehlo.add %history_start, %not_padding_3 : tensor<64xi32>
    %history_index = stablehlo.reshape %history_at : (tensor<64xi32>) -> tensor<64x1xi32>
    %stored_tokens = "stablehlo.gather"(%history, %history_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<64x1xi32>) -> tensor<64xi32>
    %sampled = stablehlo.constant dense<-1> : tensor<64xi32>
    %is_sampled = stablehlo.compare EQ, %not_padding, %sampled : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi1>
    %token_ids = stablehlo.select %is_sampled, %stored_tokens, %not_padding : tensor<64xi1>, tensor<64xi32>
    %new_history = "stablehlo.scatter"(%history, %history_index, %token_ids) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<i32>, %new: tensor<i32>):
      stablehlo.return %new : tensor<i32>
    }) : (tensor<?xi32>, tensor<64x1xi32>, tensor<64xi32>) -> tensor<?xi32>

    // row of each token in the KV pool
    %slots = stablehlo.slice %batch [128:192] : (tensor<?xi32>) -> tensor<64xi32>
    %slot_pages = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages_2 = stablehlo.broadcast_in_dim %slot_pages, dims = [0] : (tensor<1xi32>) -> tensor<64xi32>
    %slot_start = stablehlo.multiply %slots, %slot_pages_2 : tensor<64xi32>
    %page_table = stablehlo.constant dense<2112> : tensor<64xi32>
    %slot_page_table = stablehlo.add %slot_start, %page_table : tensor<64xi32>
    %page_size = stablehlo.constant dense<16> : tensor<64xi32>
    %page_number = stablehlo.divide %positions, %page_size : tensor<64xi32>
    %page_at = stablehlo.add %slot_page_table, %page_number : tensor<64xi32>
    %page_index = stablehlo.reshape %page_at : (tensor<64xi32>) -> tensor<64x1xi32>
    %page = "stablehlo.gather"(%batch, %page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<64x1xi32>) -> tensor<64xi32>
    %scratch_page = stablehlo.constant dense<0> : tensor<64xi32>
    %page_or_scratch = stablehlo.select %is_padding, %scratch_page, %page : tensor<64xi1>, tensor<64xi32>
    %page_rows = stablehlo.constant dense<64> : tensor<64xi32>
    %page_start = stablehlo.multiply %page_or_scratch, %page_rows : tensor<64xi32>
    %index_in_page = stablehlo.remainder %positions, %page_size : tensor<64xi32>
    %kv_rows = stablehlo.add %page_start, %index_in_page : tensor<64xi32>

    // the segment
    %segment_slot = stablehlo.slice %batch [256:257] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_pages_3 = stablehlo.slice %batch [5:6] : (tensor<?xi32>) -> tensor<1xi32>
    %slot_start_2 = stablehlo.multiply %segment_slot, %slot_pages_3 : tensor<1xi32>
    %page_table_2 = stablehlo.constant dense<2112> : tensor<1xi32>
    %slot_page_table_2 = stablehlo.add %slot_start_2, %page_table_2 : tensor<1xi32>
    %segment_tokens = stablehlo.slice %batch [258:259] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_position = stablehlo.slice %batch [259:260] : (tensor<?xi32>) -> tensor<1xi32>
    %segment_end = stablehlo.add %segment_position, %segment_tokens : tensor<1xi32>
    %one = stablehlo.constant dense<1> : tensor<1xi32>
    %segment_last = stablehlo.subtract %segment_end, %one : tensor<1xi32>
    %zero_3 = stablehlo.constant dense<0> : tensor<1xi32>
    %last_position = stablehlo.maximum %segment_last, %zero_3 : tensor<1xi32>
    %all_weights = util.global.load @"*" : tensor<39072xi32>
    %words_at = arith.constant 0 : index
    %words_count = arith.constant 10240 : index
    %words = flow.tensor.slice %all_weights[%words_at for %words_count] : tensor<39072xi32> -> tensor<10240xi32>
    %model.embed_tokens.weight = flow.tensor.bitcast %words : tensor<10240xi32> -> tensor<320x32xf32>

    // embedding rows of the tokens
    %token_index = stablehlo.reshape %token_ids : (tensor<64xi32>) -> tensor<64x1xi32>
    %embedded = "stablehlo.gather"(%model.embed_tokens.weight, %token_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<320x32xf32>, tensor<64x1xi32>) -> tensor<64x32xf32>

    // ---- layer0 ----
    %words_2_at = arith.constant 10240 : index
    %words_2_count = arith.constant 32 : index
    %words_2 = flow.tensor.slice %all_weights[%words_2_at for %words_2_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.input_layernorm.weight = flow.tensor.bitcast %words_2 : tensor<32xi32> -> tensor<32xf32>
    %layer0.square = stablehlo.multiply %embedded, %embedded : tensor<64x32xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %layer0.width = stablehlo.constant dense<3.200000000e+01> : tensor<64xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<64xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<64xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<64xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
    %layer0.normed = stablehlo.multiply %embedded, %layer0.rms_scales : tensor<64x32xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<64x32xf32>
    %words_3_at = arith.constant 10272 : index
    %words_3_count = arith.constant 1024 : index
    %words_3 = flow.tensor.slice %all_weights[%words_3_at for %words_3_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.q_proj.weight = flow.tensor.bitcast %words_3 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output = stablehlo.dot_general %model.layers.0.self_attn.q_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<64x32xf32>) -> tensor<32x64xf32>
    %layer0.q = stablehlo.transpose %layer0.by_output, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %words_4_at = arith.constant 11296 : index
    %words_4_count = arith.constant 512 : index
    %words_4 = flow.tensor.slice %all_weights[%words_4_at for %words_4_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.k_proj.weight = flow.tensor.bitcast %words_4 : tensor<512xi32> -> tensor<16x32xf32>
    %layer0.by_output_2 = stablehlo.dot_general %model.layers.0.self_attn.k_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<64x32xf32>) -> tensor<16x64xf32>
    %layer0.k = stablehlo.transpose %layer0.by_output_2, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %words_5_at = arith.constant 11808 : index
    %words_5_count = arith.constant 512 : index
    %words_5 = flow.tensor.slice %all_weights[%words_5_at for %words_5_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.0.self_attn.v_proj.weight = flow.tensor.bitcast %words_5 : tensor<512xi32> -> tensor<16x32xf32>
    %layer0.by_output_3 = stablehlo.dot_general %model.layers.0.self_attn.v_proj.weight, %layer0.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<64x32xf32>) -> tensor<16x64xf32>
    %layer0.v = stablehlo.transpose %layer0.by_output_3, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %layer0.rope_frequency = stablehlo.constant dense<[1.000000000e+00, 1.000000015e-01, 9.999999776e-03, 1.000000047e-03]> : tensor<4xf32>
    %layer0.position_f32 = stablehlo.convert %positions : (tensor<64xi32>) -> tensor<64xf32>
    %layer0.rope_position = stablehlo.broadcast_in_dim %layer0.position_f32, dims = [0] : (tensor<64xf32>) -> tensor<64x4xf32>
    %layer0.rope_frequencies = stablehlo.broadcast_in_dim %layer0.rope_frequency, dims = [1] : (tensor<4xf32>) -> tensor<64x4xf32>
    %layer0.rope_angle = stablehlo.multiply %layer0.rope_position, %layer0.rope_frequencies : tensor<64x4xf32>
    %layer0.rotations_per_radian = stablehlo.constant dense<1.591549367e-01> : tensor<64x4xf32>
    %layer0.rotations = stablehlo.multiply %layer0.rope_angle, %layer0.rotations_per_radian : tensor<64x4xf32>
    %layer0.whole_rotations = stablehlo.round_nearest_even %layer0.rotations : tensor<64x4xf32>
    %layer0.two_pi_part = stablehlo.constant dense<6.281250000e+00> : tensor<64x4xf32>
    %layer0.rotation_part = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part : tensor<64x4xf32>
    %layer0.reduced_angle = stablehlo.subtract %layer0.rope_angle, %layer0.rotation_part : tensor<64x4xf32>
    %layer0.two_pi_part_2 = stablehlo.constant dense<1.935005188e-03> : tensor<64x4xf32>
    %layer0.rotation_part_2 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_2 : tensor<64x4xf32>
    %layer0.reduced_angle_2 = stablehlo.subtract %layer0.reduced_angle, %layer0.rotation_part_2 : tensor<64x4xf32>
    %layer0.two_pi_part_3 = stablehlo.constant dense<3.019916051e-07> : tensor<64x4xf32>
    %layer0.rotation_part_3 = stablehlo.multiply %layer0.whole_rotations, %layer0.two_pi_part_3 : tensor<64x4xf32>
    %layer0.reduced_angle_3 = stablehlo.subtract %layer0.reduced_angle_2, %layer0.rotation_part_3 : tensor<64x4xf32>
    %layer0.rope_cos = stablehlo.cosine %layer0.reduced_angle_3 : tensor<64x4xf32>
    %layer0.rope_sin = stablehlo.sine %layer0.reduced_angle_3 : tensor<64x4xf32>
    %layer0.by_head = stablehlo.reshape %layer0.q : (tensor<64x32xf32>) -> tensor<64x4x8xf32>
    %layer0.low = stablehlo.slice %layer0.by_head [0:64, 0:4, 0:4] : (tensor<64x4x8xf32>) -> tensor<64x4x4xf32>
    %layer0.high = stablehlo.slice %layer0.by_head [0:64, 0:4, 4:8] : (tensor<64x4x8xf32>) -> tensor<64x4x4xf32>
    %layer0.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x4x4xf32>
    %layer0.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x4x4xf32>
    %layer0.low_cos = stablehlo.multiply %layer0.low, %layer0.cos : tensor<64x4x4xf32>
    %layer0.high_sin = stablehlo.multiply %layer0.high, %layer0.sin : tensor<64x4x4xf32>
    %layer0.new_low = stablehlo.subtract %layer0.low_cos, %layer0.high_sin : tensor<64x4x4xf32>
    %layer0.high_cos = stablehlo.multiply %layer0.high, %layer0.cos : tensor<64x4x4xf32>
    %layer0.low_sin = stablehlo.multiply %layer0.low, %layer0.sin : tensor<64x4x4xf32>
    %layer0.new_high = stablehlo.add %layer0.high_cos, %layer0.low_sin : tensor<64x4x4xf32>
    %layer0.rotated = stablehlo.concatenate %layer0.new_low, %layer0.new_high, dim = 2 : (tensor<64x4x4xf32>, tensor<64x4x4xf32>) -> tensor<64x4x8xf32>
    %layer0.q_rope = stablehlo.reshape %layer0.rotated : (tensor<64x4x8xf32>) -> tensor<64x32xf32>
    %layer0.by_head_2 = stablehlo.reshape %layer0.k : (tensor<64x16xf32>) -> tensor<64x2x8xf32>
    %layer0.low_2 = stablehlo.slice %layer0.by_head_2 [0:64, 0:2, 0:4] : (tensor<64x2x8xf32>) -> tensor<64x2x4xf32>
    %layer0.high_2 = stablehlo.slice %layer0.by_head_2 [0:64, 0:2, 4:8] : (tensor<64x2x8xf32>) -> tensor<64x2x4xf32>
    %layer0.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x2x4xf32>
    %layer0.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x2x4xf32>
    %layer0.low_cos_2 = stablehlo.multiply %layer0.low_2, %layer0.cos_2 : tensor<64x2x4xf32>
    %layer0.high_sin_2 = stablehlo.multiply %layer0.high_2, %layer0.sin_2 : tensor<64x2x4xf32>
    %layer0.new_low_2 = stablehlo.subtract %layer0.low_cos_2, %layer0.high_sin_2 : tensor<64x2x4xf32>
    %layer0.high_cos_2 = stablehlo.multiply %layer0.high_2, %layer0.cos_2 : tensor<64x2x4xf32>
    %layer0.low_sin_2 = stablehlo.multiply %layer0.low_2, %layer0.sin_2 : tensor<64x2x4xf32>
    %layer0.new_high_2 = stablehlo.add %layer0.high_cos_2, %layer0.low_sin_2 : tensor<64x2x4xf32>
    %layer0.rotated_2 = stablehlo.concatenate %layer0.new_low_2, %layer0.new_high_2, dim = 2 : (tensor<64x2x4xf32>, tensor<64x2x4xf32>) -> tensor<64x2x8xf32>
    %layer0.k_rope = stablehlo.reshape %layer0.rotated_2 : (tensor<64x2x8xf32>) -> tensor<64x16xf32>
    %layer0.row_index = stablehlo.reshape %kv_rows : (tensor<64xi32>) -> tensor<64x1xi32>
    %layer0.pool = "stablehlo.scatter"(%kv, %layer0.row_index, %layer0.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<?x16xf32>
    %layer0.layer_offset = stablehlo.constant dense<16> : tensor<64xi32>
    %layer0.layer_rows = stablehlo.add %kv_rows, %layer0.layer_offset : tensor<64xi32>
    %layer0.row_index_2 = stablehlo.reshape %layer0.layer_rows : (tensor<64xi32>) -> tensor<64x1xi32>
    %layer0.pool_2 = "stablehlo.scatter"(%layer0.pool, %layer0.row_index_2, %layer0.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<?x16xf32>
    %layer0.query = stablehlo.reshape %layer0.q_rope : (tensor<64x32xf32>) -> tensor<64x2x2x8xf32>
    %layer0.scale = stablehlo.constant dense<3.535533845e-01> : tensor<64x2x2x8xf32>
    %layer0.scaled_query = stablehlo.multiply %layer0.query, %layer0.scale : tensor<64x2x2x8xf32>
    %layer0.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x64x2xf32>
    %layer0.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x64x2xf32>
    %layer0.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x64x2x8xf32>
    %layer0.each_chunk_first = arith.constant 0 : index
    %layer0.each_chunk_step = arith.constant 1 : index
    %layer0.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer0.each_chunk:3 = scf.for %layer0.each_chunk_at = %layer0.each_chunk_first to %layer0.each_chunk_end step %layer0.each_chunk_step iter_args(%layer0.carried = %layer0.no_score, %layer0.carried_2 = %layer0.weight_start, %layer0.carried_3 = %layer0.sum_start) -> (tensor<2x64x2xf32>, tensor<2x64x2xf32>, tensor<2x64x2x8xf32>) {
    %layer0.each_chunk_i32 = arith.index_cast %layer0.each_chunk_at : index to i32
    %layer0.iteration = tensor.from_elements %layer0.each_chunk_i32 : tensor<i32>
    %layer0.chunk = stablehlo.broadcast_in_dim %layer0.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer0.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer0.chunk_start = stablehlo.multiply %layer0.chunk, %layer0.chunk_size : tensor<256xi32>
    %layer0.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer0.key_positions = stablehlo.add %layer0.chunk_start, %layer0.nth_position : tensor<256xi32>
    %layer0.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.written_position = stablehlo.minimum %layer0.key_positions, %layer0.last : tensor<256xi32>
    %layer0.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.page_number = stablehlo.divide %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer0.page_at = stablehlo.add %layer0.first_page, %layer0.page_number : tensor<256xi32>
    %layer0.page_index = stablehlo.reshape %layer0.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.page = "stablehlo.gather"(%batch, %layer0.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer0.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer0.page_start = stablehlo.multiply %layer0.page, %layer0.page_rows : tensor<256xi32>
    %layer0.index_in_page = stablehlo.remainder %layer0.written_position, %layer0.page_size : tensor<256xi32>
    %layer0.chunk_rows = stablehlo.add %layer0.page_start, %layer0.index_in_page : tensor<256xi32>
    %layer0.row_index_3 = stablehlo.reshape %layer0.chunk_rows : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.keys = stablehlo.reshape %layer0.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.layer_offset_2 = stablehlo.constant dense<16> : tensor<256xi32>
    %layer0.layer_rows_2 = stablehlo.add %layer0.chunk_rows, %layer0.layer_offset_2 : tensor<256xi32>
    %layer0.row_index_4 = stablehlo.reshape %layer0.layer_rows_2 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer0.pool_rows_2 = "stablehlo.gather"(%layer0.pool_2, %layer0.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer0.values = stablehlo.reshape %layer0.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer0.scores = stablehlo.dot_general %layer0.scaled_query, %layer0.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<64x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x64x2x256xf32>
    %layer0.key_position = stablehlo.broadcast_in_dim %layer0.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<64x256xi32>
    %layer0.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<64xi32>) -> tensor<64x256xi32>
    %layer0.is_later = stablehlo.compare GT, %layer0.key_position, %layer0.query_position : (tensor<64x256xi32>, tensor<64x256xi32>) -> tensor<64x256xi1>
    %layer0.mask = stablehlo.broadcast_in_dim %layer0.is_later, dims = [1, 3] : (tensor<64x256xi1>) -> tensor<2x64x2x256xi1>
    %layer0.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x64x2x256xf32>  // -inf
    %layer0.masked_scores = stablehlo.select %layer0.mask, %layer0.minus_infinity, %layer0.scores : tensor<2x64x2x256xi1>, tensor<2x64x2x256xf32>
    %layer0.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer0.chunk_max = stablehlo.reduce(%layer0.masked_scores init: %layer0.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x64x2x256xf32>, tensor<f32>) -> tensor<2x64x2xf32>
    %layer0.max_score = stablehlo.maximum %layer0.carried, %layer0.chunk_max : tensor<2x64x2xf32>
    %layer0.max_change = stablehlo.subtract %layer0.carried, %layer0.max_score : tensor<2x64x2xf32>
    %layer0.rescale = stablehlo.exponential %layer0.max_change : tensor<2x64x2xf32>
    %layer0.max_scores = stablehlo.broadcast_in_dim %layer0.max_score, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x256xf32>
    %layer0.minus_max = stablehlo.subtract %layer0.masked_scores, %layer0.max_scores : tensor<2x64x2x256xf32>
    %layer0.weights = stablehlo.exponential %layer0.minus_max : tensor<2x64x2x256xf32>
    %layer0.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.chunk_weight = stablehlo.reduce(%layer0.weights init: %layer0.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x64x2x256xf32>, tensor<f32>) -> tensor<2x64x2xf32>
    %layer0.old_weight = stablehlo.multiply %layer0.carried_2, %layer0.rescale : tensor<2x64x2xf32>
    %layer0.weight = stablehlo.add %layer0.old_weight, %layer0.chunk_weight : tensor<2x64x2xf32>
    %layer0.weighted_values = stablehlo.dot_general %layer0.weights, %layer0.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x64x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x64x2x8xf32>
    %layer0.rescales = stablehlo.broadcast_in_dim %layer0.rescale, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x8xf32>
    %layer0.old_sum = stablehlo.multiply %layer0.carried_3, %layer0.rescales : tensor<2x64x2x8xf32>
    %layer0.sum = stablehlo.add %layer0.old_sum, %layer0.weighted_values : tensor<2x64x2x8xf32>
    scf.yield %layer0.max_score, %layer0.weight, %layer0.sum : tensor<2x64x2xf32>, tensor<2x64x2xf32>, tensor<2x64x2x8xf32>
    }
    %layer0.total_weight = stablehlo.broadcast_in_dim %layer0.each_chunk#1, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x8xf32>
    %layer0.by_kv_head = stablehlo.divide %layer0.each_chunk#2, %layer0.total_weight : tensor<2x64x2x8xf32>
    %layer0.by_token = stablehlo.transpose %layer0.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x64x2x8xf32>) -> tensor<64x2x2x8xf32>
    %layer0.attended = stablehlo.reshape %layer0.by_token : (tensor<64x2x2x8xf32>) -> tensor<64x32xf32>
    %words_6_at = arith.constant 12320 : index
    %words_6_count = arith.constant 1024 : index
    %words_6 = flow.tensor.slice %all_weights[%words_6_at for %words_6_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.o_proj.weight = flow.tensor.bitcast %words_6 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer0.by_output_4 = stablehlo.dot_general %model.layers.0.self_attn.o_proj.weight, %layer0.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<64x32xf32>) -> tensor<32x64xf32>
    %layer0.o = stablehlo.transpose %layer0.by_output_4, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %layer0.after_attn = stablehlo.add %embedded, %layer0.o : tensor<64x32xf32>
    %words_7_at = arith.constant 13344 : index
    %words_7_count = arith.constant 32 : index
    %words_7 = flow.tensor.slice %all_weights[%words_7_at for %words_7_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.0.post_attention_layernorm.weight = flow.tensor.bitcast %words_7 : tensor<32xi32> -> tensor<32xf32>
    %layer0.square_2 = stablehlo.multiply %layer0.after_attn, %layer0.after_attn : tensor<64x32xf32>
    %layer0.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum_2 = stablehlo.reduce(%layer0.square_2 init: %layer0.start_4) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %layer0.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<64xf32>
    %layer0.square_mean_2 = stablehlo.divide %layer0.square_sum_2, %layer0.width_2 : tensor<64xf32>
    %layer0.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer0.mean_plus_eps_2 = stablehlo.add %layer0.square_mean_2, %layer0.eps_2 : tensor<64xf32>
    %layer0.rms_scale_2 = stablehlo.rsqrt %layer0.mean_plus_eps_2 : tensor<64xf32>
    %layer0.rms_scales_2 = stablehlo.broadcast_in_dim %layer0.rms_scale_2, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
    %layer0.normed_2 = stablehlo.multiply %layer0.after_attn, %layer0.rms_scales_2 : tensor<64x32xf32>
    %layer0.gains_2 = stablehlo.broadcast_in_dim %model.layers.0.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
    %layer0.mlp_in = stablehlo.multiply %layer0.normed_2, %layer0.gains_2 : tensor<64x32xf32>
    %words_8_at = arith.constant 13376 : index
    %words_8_count = arith.constant 2048 : index
    %words_8 = flow.tensor.slice %all_weights[%words_8_at for %words_8_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.gate_proj.weight = flow.tensor.bitcast %words_8 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_5 = stablehlo.dot_general %model.layers.0.mlp.gate_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>
    %layer0.gate = stablehlo.transpose %layer0.by_output_5, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %words_9_at = arith.constant 15424 : index
    %words_9_count = arith.constant 2048 : index
    %words_9 = flow.tensor.slice %all_weights[%words_9_at for %words_9_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.up_proj.weight = flow.tensor.bitcast %words_9 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer0.by_output_6 = stablehlo.dot_general %model.layers.0.mlp.up_proj.weight, %layer0.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>
    %layer0.up = stablehlo.transpose %layer0.by_output_6, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %layer0.sigmoid = stablehlo.logistic %layer0.gate : tensor<64x64xf32>
    %layer0.silu = stablehlo.multiply %layer0.gate, %layer0.sigmoid : tensor<64x64xf32>
    %layer0.act = stablehlo.multiply %layer0.silu, %layer0.up : tensor<64x64xf32>
    %words_10_at = arith.constant 17472 : index
    %words_10_count = arith.constant 2048 : index
    %words_10 = flow.tensor.slice %all_weights[%words_10_at for %words_10_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.0.mlp.down_proj.weight = flow.tensor.bitcast %words_10 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer0.by_output_7 = stablehlo.dot_general %model.layers.0.mlp.down_proj.weight, %layer0.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %layer0.down = stablehlo.transpose %layer0.by_output_7, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %layer0.out = stablehlo.add %layer0.after_attn, %layer0.down : tensor<64x32xf32>

    // ---- layer1 ----
    %words_11_at = arith.constant 19520 : index
    %words_11_count = arith.constant 32 : index
    %words_11 = flow.tensor.slice %all_weights[%words_11_at for %words_11_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.input_layernorm.weight = flow.tensor.bitcast %words_11 : tensor<32xi32> -> tensor<32xf32>
    %layer1.square = stablehlo.multiply %layer0.out, %layer0.out : tensor<64x32xf32>
    %layer1.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum = stablehlo.reduce(%layer1.square init: %layer1.start) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %layer1.width = stablehlo.constant dense<3.200000000e+01> : tensor<64xf32>
    %layer1.square_mean = stablehlo.divide %layer1.square_sum, %layer1.width : tensor<64xf32>
    %layer1.eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer1.mean_plus_eps = stablehlo.add %layer1.square_mean, %layer1.eps : tensor<64xf32>
    %layer1.rms_scale = stablehlo.rsqrt %layer1.mean_plus_eps : tensor<64xf32>
    %layer1.rms_scales = stablehlo.broadcast_in_dim %layer1.rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
    %layer1.normed = stablehlo.multiply %layer0.out, %layer1.rms_scales : tensor<64x32xf32>
    %layer1.gains = stablehlo.broadcast_in_dim %model.layers.1.input_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
    %layer1.attn_in = stablehlo.multiply %layer1.normed, %layer1.gains : tensor<64x32xf32>
    %words_12_at = arith.constant 19552 : index
    %words_12_count = arith.constant 1024 : index
    %words_12 = flow.tensor.slice %all_weights[%words_12_at for %words_12_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.q_proj.weight = flow.tensor.bitcast %words_12 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output = stablehlo.dot_general %model.layers.1.self_attn.q_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<64x32xf32>) -> tensor<32x64xf32>
    %layer1.q = stablehlo.transpose %layer1.by_output, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %words_13_at = arith.constant 20576 : index
    %words_13_count = arith.constant 512 : index
    %words_13 = flow.tensor.slice %all_weights[%words_13_at for %words_13_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.k_proj.weight = flow.tensor.bitcast %words_13 : tensor<512xi32> -> tensor<16x32xf32>
    %layer1.by_output_2 = stablehlo.dot_general %model.layers.1.self_attn.k_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<64x32xf32>) -> tensor<16x64xf32>
    %layer1.k = stablehlo.transpose %layer1.by_output_2, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %words_14_at = arith.constant 21088 : index
    %words_14_count = arith.constant 512 : index
    %words_14 = flow.tensor.slice %all_weights[%words_14_at for %words_14_count] : tensor<39072xi32> -> tensor<512xi32>
    %model.layers.1.self_attn.v_proj.weight = flow.tensor.bitcast %words_14 : tensor<512xi32> -> tensor<16x32xf32>
    %layer1.by_output_3 = stablehlo.dot_general %model.layers.1.self_attn.v_proj.weight, %layer1.attn_in, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<64x32xf32>) -> tensor<16x64xf32>
    %layer1.v = stablehlo.transpose %layer1.by_output_3, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %layer1.by_head = stablehlo.reshape %layer1.q : (tensor<64x32xf32>) -> tensor<64x4x8xf32>
    %layer1.low = stablehlo.slice %layer1.by_head [0:64, 0:4, 0:4] : (tensor<64x4x8xf32>) -> tensor<64x4x4xf32>
    %layer1.high = stablehlo.slice %layer1.by_head [0:64, 0:4, 4:8] : (tensor<64x4x8xf32>) -> tensor<64x4x4xf32>
    %layer1.cos = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x4x4xf32>
    %layer1.sin = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x4x4xf32>
    %layer1.low_cos = stablehlo.multiply %layer1.low, %layer1.cos : tensor<64x4x4xf32>
    %layer1.high_sin = stablehlo.multiply %layer1.high, %layer1.sin : tensor<64x4x4xf32>
    %layer1.new_low = stablehlo.subtract %layer1.low_cos, %layer1.high_sin : tensor<64x4x4xf32>
    %layer1.high_cos = stablehlo.multiply %layer1.high, %layer1.cos : tensor<64x4x4xf32>
    %layer1.low_sin = stablehlo.multiply %layer1.low, %layer1.sin : tensor<64x4x4xf32>
    %layer1.new_high = stablehlo.add %layer1.high_cos, %layer1.low_sin : tensor<64x4x4xf32>
    %layer1.rotated = stablehlo.concatenate %layer1.new_low, %layer1.new_high, dim = 2 : (tensor<64x4x4xf32>, tensor<64x4x4xf32>) -> tensor<64x4x8xf32>
    %layer1.q_rope = stablehlo.reshape %layer1.rotated : (tensor<64x4x8xf32>) -> tensor<64x32xf32>
    %layer1.by_head_2 = stablehlo.reshape %layer1.k : (tensor<64x16xf32>) -> tensor<64x2x8xf32>
    %layer1.low_2 = stablehlo.slice %layer1.by_head_2 [0:64, 0:2, 0:4] : (tensor<64x2x8xf32>) -> tensor<64x2x4xf32>
    %layer1.high_2 = stablehlo.slice %layer1.by_head_2 [0:64, 0:2, 4:8] : (tensor<64x2x8xf32>) -> tensor<64x2x4xf32>
    %layer1.cos_2 = stablehlo.broadcast_in_dim %layer0.rope_cos, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x2x4xf32>
    %layer1.sin_2 = stablehlo.broadcast_in_dim %layer0.rope_sin, dims = [0, 2] : (tensor<64x4xf32>) -> tensor<64x2x4xf32>
    %layer1.low_cos_2 = stablehlo.multiply %layer1.low_2, %layer1.cos_2 : tensor<64x2x4xf32>
    %layer1.high_sin_2 = stablehlo.multiply %layer1.high_2, %layer1.sin_2 : tensor<64x2x4xf32>
    %layer1.new_low_2 = stablehlo.subtract %layer1.low_cos_2, %layer1.high_sin_2 : tensor<64x2x4xf32>
    %layer1.high_cos_2 = stablehlo.multiply %layer1.high_2, %layer1.cos_2 : tensor<64x2x4xf32>
    %layer1.low_sin_2 = stablehlo.multiply %layer1.low_2, %layer1.sin_2 : tensor<64x2x4xf32>
    %layer1.new_high_2 = stablehlo.add %layer1.high_cos_2, %layer1.low_sin_2 : tensor<64x2x4xf32>
    %layer1.rotated_2 = stablehlo.concatenate %layer1.new_low_2, %layer1.new_high_2, dim = 2 : (tensor<64x2x4xf32>, tensor<64x2x4xf32>) -> tensor<64x2x8xf32>
    %layer1.k_rope = stablehlo.reshape %layer1.rotated_2 : (tensor<64x2x8xf32>) -> tensor<64x16xf32>
    %layer1.layer_offset = stablehlo.constant dense<32> : tensor<64xi32>
    %layer1.layer_rows = stablehlo.add %kv_rows, %layer1.layer_offset : tensor<64xi32>
    %layer1.row_index = stablehlo.reshape %layer1.layer_rows : (tensor<64xi32>) -> tensor<64x1xi32>
    %layer1.pool = "stablehlo.scatter"(%layer0.pool_2, %layer1.row_index, %layer1.k_rope) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<?x16xf32>
    %layer1.layer_offset_2 = stablehlo.constant dense<48> : tensor<64xi32>
    %layer1.layer_rows_2 = stablehlo.add %kv_rows, %layer1.layer_offset_2 : tensor<64xi32>
    %layer1.row_index_2 = stablehlo.reshape %layer1.layer_rows_2 : (tensor<64xi32>) -> tensor<64x1xi32>
    %layer1.pool_2 = "stablehlo.scatter"(%layer1.pool, %layer1.row_index_2, %layer1.v) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<?x16xf32>, tensor<64x1xi32>, tensor<64x16xf32>) -> tensor<?x16xf32>
    %layer1.query = stablehlo.reshape %layer1.q_rope : (tensor<64x32xf32>) -> tensor<64x2x2x8xf32>
    %layer1.scale = stablehlo.constant dense<3.535533845e-01> : tensor<64x2x2x8xf32>
    %layer1.scaled_query = stablehlo.multiply %layer1.query, %layer1.scale : tensor<64x2x2x8xf32>
    %layer1.no_score = stablehlo.constant dense<-1.000000015e+30> : tensor<2x64x2xf32>
    %layer1.weight_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x64x2xf32>
    %layer1.sum_start = stablehlo.constant dense<0.000000000e+00> : tensor<2x64x2x8xf32>
    %layer1.each_chunk_first = arith.constant 0 : index
    %layer1.each_chunk_step = arith.constant 1 : index
    %layer1.each_chunk_end = arith.index_cast %chunks : i32 to index
    %layer1.each_chunk:3 = scf.for %layer1.each_chunk_at = %layer1.each_chunk_first to %layer1.each_chunk_end step %layer1.each_chunk_step iter_args(%layer1.carried = %layer1.no_score, %layer1.carried_2 = %layer1.weight_start, %layer1.carried_3 = %layer1.sum_start) -> (tensor<2x64x2xf32>, tensor<2x64x2xf32>, tensor<2x64x2x8xf32>) {
    %layer1.each_chunk_i32 = arith.index_cast %layer1.each_chunk_at : index to i32
    %layer1.iteration = tensor.from_elements %layer1.each_chunk_i32 : tensor<i32>
    %layer1.chunk = stablehlo.broadcast_in_dim %layer1.iteration, dims = [] : (tensor<i32>) -> tensor<256xi32>
    %layer1.chunk_size = stablehlo.constant dense<256> : tensor<256xi32>
    %layer1.chunk_start = stablehlo.multiply %layer1.chunk, %layer1.chunk_size : tensor<256xi32>
    %layer1.nth_position = stablehlo.iota dim = 0 : tensor<256xi32>
    %layer1.key_positions = stablehlo.add %layer1.chunk_start, %layer1.nth_position : tensor<256xi32>
    %layer1.last = stablehlo.broadcast_in_dim %last_position, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.written_position = stablehlo.minimum %layer1.key_positions, %layer1.last : tensor<256xi32>
    %layer1.page_size = stablehlo.constant dense<16> : tensor<256xi32>
    %layer1.page_number = stablehlo.divide %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.first_page = stablehlo.broadcast_in_dim %slot_page_table_2, dims = [0] : (tensor<1xi32>) -> tensor<256xi32>
    %layer1.page_at = stablehlo.add %layer1.first_page, %layer1.page_number : tensor<256xi32>
    %layer1.page_index = stablehlo.reshape %layer1.page_at : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.page = "stablehlo.gather"(%batch, %layer1.page_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<?xi32>, tensor<256x1xi32>) -> tensor<256xi32>
    %layer1.page_rows = stablehlo.constant dense<64> : tensor<256xi32>
    %layer1.page_start = stablehlo.multiply %layer1.page, %layer1.page_rows : tensor<256xi32>
    %layer1.index_in_page = stablehlo.remainder %layer1.written_position, %layer1.page_size : tensor<256xi32>
    %layer1.chunk_rows = stablehlo.add %layer1.page_start, %layer1.index_in_page : tensor<256xi32>
    %layer1.layer_offset_3 = stablehlo.constant dense<32> : tensor<256xi32>
    %layer1.layer_rows_3 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_3 : tensor<256xi32>
    %layer1.row_index_3 = stablehlo.reshape %layer1.layer_rows_3 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.keys = stablehlo.reshape %layer1.pool_rows : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.layer_offset_4 = stablehlo.constant dense<48> : tensor<256xi32>
    %layer1.layer_rows_4 = stablehlo.add %layer1.chunk_rows, %layer1.layer_offset_4 : tensor<256xi32>
    %layer1.row_index_4 = stablehlo.reshape %layer1.layer_rows_4 : (tensor<256xi32>) -> tensor<256x1xi32>
    %layer1.pool_rows_2 = "stablehlo.gather"(%layer1.pool_2, %layer1.row_index_4) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<?x16xf32>, tensor<256x1xi32>) -> tensor<256x16xf32>
    %layer1.values = stablehlo.reshape %layer1.pool_rows_2 : (tensor<256x16xf32>) -> tensor<256x2x8xf32>
    %layer1.scores = stablehlo.dot_general %layer1.scaled_query, %layer1.keys, batching_dims = [1] x [1], contracting_dims = [3] x [2] : (tensor<64x2x2x8xf32>, tensor<256x2x8xf32>) -> tensor<2x64x2x256xf32>
    %layer1.key_position = stablehlo.broadcast_in_dim %layer1.key_positions, dims = [1] : (tensor<256xi32>) -> tensor<64x256xi32>
    %layer1.query_position = stablehlo.broadcast_in_dim %positions, dims = [0] : (tensor<64xi32>) -> tensor<64x256xi32>
    %layer1.is_later = stablehlo.compare GT, %layer1.key_position, %layer1.query_position : (tensor<64x256xi32>, tensor<64x256xi32>) -> tensor<64x256xi1>
    %layer1.mask = stablehlo.broadcast_in_dim %layer1.is_later, dims = [1, 3] : (tensor<64x256xi1>) -> tensor<2x64x2x256xi1>
    %layer1.minus_infinity = stablehlo.constant dense<0xFF800000> : tensor<2x64x2x256xf32>  // -inf
    %layer1.masked_scores = stablehlo.select %layer1.mask, %layer1.minus_infinity, %layer1.scores : tensor<2x64x2x256xi1>, tensor<2x64x2x256xf32>
    %layer1.start_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>  // -inf
    %layer1.chunk_max = stablehlo.reduce(%layer1.masked_scores init: %layer1.start_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x64x2x256xf32>, tensor<f32>) -> tensor<2x64x2xf32>
    %layer1.max_score = stablehlo.maximum %layer1.carried, %layer1.chunk_max : tensor<2x64x2xf32>
    %layer1.max_change = stablehlo.subtract %layer1.carried, %layer1.max_score : tensor<2x64x2xf32>
    %layer1.rescale = stablehlo.exponential %layer1.max_change : tensor<2x64x2xf32>
    %layer1.max_scores = stablehlo.broadcast_in_dim %layer1.max_score, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x256xf32>
    %layer1.minus_max = stablehlo.subtract %layer1.masked_scores, %layer1.max_scores : tensor<2x64x2x256xf32>
    %layer1.weights = stablehlo.exponential %layer1.minus_max : tensor<2x64x2x256xf32>
    %layer1.start_3 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.chunk_weight = stablehlo.reduce(%layer1.weights init: %layer1.start_3) applies stablehlo.add across dimensions = [3] : (tensor<2x64x2x256xf32>, tensor<f32>) -> tensor<2x64x2xf32>
    %layer1.old_weight = stablehlo.multiply %layer1.carried_2, %layer1.rescale : tensor<2x64x2xf32>
    %layer1.weight = stablehlo.add %layer1.old_weight, %layer1.chunk_weight : tensor<2x64x2xf32>
    %layer1.weighted_values = stablehlo.dot_general %layer1.weights, %layer1.values, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x64x2x256xf32>, tensor<256x2x8xf32>) -> tensor<2x64x2x8xf32>
    %layer1.rescales = stablehlo.broadcast_in_dim %layer1.rescale, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x8xf32>
    %layer1.old_sum = stablehlo.multiply %layer1.carried_3, %layer1.rescales : tensor<2x64x2x8xf32>
    %layer1.sum = stablehlo.add %layer1.old_sum, %layer1.weighted_values : tensor<2x64x2x8xf32>
    scf.yield %layer1.max_score, %layer1.weight, %layer1.sum : tensor<2x64x2xf32>, tensor<2x64x2xf32>, tensor<2x64x2x8xf32>
    }
    %layer1.total_weight = stablehlo.broadcast_in_dim %layer1.each_chunk#1, dims = [0, 1, 2] : (tensor<2x64x2xf32>) -> tensor<2x64x2x8xf32>
    %layer1.by_kv_head = stablehlo.divide %layer1.each_chunk#2, %layer1.total_weight : tensor<2x64x2x8xf32>
    %layer1.by_token = stablehlo.transpose %layer1.by_kv_head, dims = [1, 0, 2, 3] : (tensor<2x64x2x8xf32>) -> tensor<64x2x2x8xf32>
    %layer1.attended = stablehlo.reshape %layer1.by_token : (tensor<64x2x2x8xf32>) -> tensor<64x32xf32>
    %words_15_at = arith.constant 21600 : index
    %words_15_count = arith.constant 1024 : index
    %words_15 = flow.tensor.slice %all_weights[%words_15_at for %words_15_count] : tensor<39072xi32> -> tensor<1024xi32>
    %model.layers.1.self_attn.o_proj.weight = flow.tensor.bitcast %words_15 : tensor<1024xi32> -> tensor<32x32xf32>
    %layer1.by_output_4 = stablehlo.dot_general %model.layers.1.self_attn.o_proj.weight, %layer1.attended, contracting_dims = [1] x [1] : (tensor<32x32xf32>, tensor<64x32xf32>) -> tensor<32x64xf32>
    %layer1.o = stablehlo.transpose %layer1.by_output_4, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %layer1.after_attn = stablehlo.add %layer0.out, %layer1.o : tensor<64x32xf32>
    %words_16_at = arith.constant 22624 : index
    %words_16_count = arith.constant 32 : index
    %words_16 = flow.tensor.slice %all_weights[%words_16_at for %words_16_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.layers.1.post_attention_layernorm.weight = flow.tensor.bitcast %words_16 : tensor<32xi32> -> tensor<32xf32>
    %layer1.square_2 = stablehlo.multiply %layer1.after_attn, %layer1.after_attn : tensor<64x32xf32>
    %layer1.start_4 = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer1.square_sum_2 = stablehlo.reduce(%layer1.square_2 init: %layer1.start_4) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %layer1.width_2 = stablehlo.constant dense<3.200000000e+01> : tensor<64xf32>
    %layer1.square_mean_2 = stablehlo.divide %layer1.square_sum_2, %layer1.width_2 : tensor<64xf32>
    %layer1.eps_2 = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer1.mean_plus_eps_2 = stablehlo.add %layer1.square_mean_2, %layer1.eps_2 : tensor<64xf32>
    %layer1.rms_scale_2 = stablehlo.rsqrt %layer1.mean_plus_eps_2 : tensor<64xf32>
    %layer1.rms_scales_2 = stablehlo.broadcast_in_dim %layer1.rms_scale_2, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
    %layer1.normed_2 = stablehlo.multiply %layer1.after_attn, %layer1.rms_scales_2 : tensor<64x32xf32>
    %layer1.gains_2 = stablehlo.broadcast_in_dim %model.layers.1.post_attention_layernorm.weight, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
    %layer1.mlp_in = stablehlo.multiply %layer1.normed_2, %layer1.gains_2 : tensor<64x32xf32>
    %words_17_at = arith.constant 22656 : index
    %words_17_count = arith.constant 2048 : index
    %words_17 = flow.tensor.slice %all_weights[%words_17_at for %words_17_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.gate_proj.weight = flow.tensor.bitcast %words_17 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_5 = stablehlo.dot_general %model.layers.1.mlp.gate_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>
    %layer1.gate = stablehlo.transpose %layer1.by_output_5, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %words_18_at = arith.constant 24704 : index
    %words_18_count = arith.constant 2048 : index
    %words_18 = flow.tensor.slice %all_weights[%words_18_at for %words_18_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.up_proj.weight = flow.tensor.bitcast %words_18 : tensor<2048xi32> -> tensor<64x32xf32>
    %layer1.by_output_6 = stablehlo.dot_general %model.layers.1.mlp.up_proj.weight, %layer1.mlp_in, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>
    %layer1.up = stablehlo.transpose %layer1.by_output_6, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %layer1.sigmoid = stablehlo.logistic %layer1.gate : tensor<64x64xf32>
    %layer1.silu = stablehlo.multiply %layer1.gate, %layer1.sigmoid : tensor<64x64xf32>
    %layer1.act = stablehlo.multiply %layer1.silu, %layer1.up : tensor<64x64xf32>
    %words_19_at = arith.constant 26752 : index
    %words_19_count = arith.constant 2048 : index
    %words_19 = flow.tensor.slice %all_weights[%words_19_at for %words_19_count] : tensor<39072xi32> -> tensor<2048xi32>
    %model.layers.1.mlp.down_proj.weight = flow.tensor.bitcast %words_19 : tensor<2048xi32> -> tensor<32x64xf32>
    %layer1.by_output_7 = stablehlo.dot_general %model.layers.1.mlp.down_proj.weight, %layer1.act, contracting_dims = [1] x [1] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %layer1.down = stablehlo.transpose %layer1.by_output_7, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %layer1.out = stablehlo.add %layer1.after_attn, %layer1.down : tensor<64x32xf32>
    %words_20_at = arith.constant 28800 : index
    %words_20_count = arith.constant 32 : index
    %words_20 = flow.tensor.slice %all_weights[%words_20_at for %words_20_count] : tensor<39072xi32> -> tensor<32xi32>
    %model.norm.weight = flow.tensor.bitcast %words_20 : tensor<32xi32> -> tensor<32xf32>
    %square = stablehlo.multiply %layer1.out, %layer1.out : tensor<64x32xf32>
    %start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %square_sum = stablehlo.reduce(%square init: %start) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
    %width = stablehlo.constant dense<3.200000000e+01> : tensor<64xf32>
    %square_mean = stablehlo.divide %square_sum, %width : tensor<64xf32>
    %eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %mean_plus_eps = stablehlo.add %square_mean, %eps : tensor<64xf32>
    %rms_scale = stablehlo.rsqrt %mean_plus_eps : tensor<64xf32>
    %rms_scales = stablehlo.broadcast_in_dim %rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
    %normed = stablehlo.multiply %layer1.out, %rms_scales : tensor<64x32xf32>
    %gains = stablehlo.broadcast_in_dim %model.norm.weight, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
    %final = stablehlo.multiply %normed, %gains : tensor<64x32xf32>

    // hidden states of the tokens whose logits are wanted
    %wanted = "stablehlo.gather"(%final, %wanted_index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 32>}> : (tensor<64x32xf32>, tensor<64x1xi32>) -> tensor<64x32xf32>
    %new_hidden = tensor.insert_slice %wanted into %hidden[0, 0] [64, 32] [1, 1] : tensor<64x32xf32> into tensor<?x32xf32>
    %words_21_at = arith.constant 28832 : index
    %words_21_count = arith.constant 10240 : index
    %words_21 = flow.tensor.slice %all_weights[%words_21_at for %words_21_count] : tensor<39072xi32> -> tensor<10240xi32>
    %lm_head.weight = flow.tensor.bitcast %words_21 : tensor<10240xi32> -> tensor<320x32xf32>
    %by_output = stablehlo.dot_general %lm_head.weight, %wanted, contracting_dims = [1] x [1] : (tensor<320x32xf32>, tensor<64x32xf32>) -> tensor<320x64xf32>
    %logits_2 = stablehlo.transpose %by_output, dims = [1, 0] : (tensor<320x64xf32>) -> tensor<64x320xf32>
    %new_logits = tensor.insert_slice %logits_2 into %logits[0, 0] [64, 320] [1, 1] : tensor<64x320xf32> into tensor<?x320xf32>
    return %new_history, %layer1.pool_2, %new_logits, %new_hidden, %results : tensor<?xi32>, tensor<?x16xf32>, tensor<?x320xf32>, tensor<?x32xf32>, tensor<?x48xi32>
  }
}
