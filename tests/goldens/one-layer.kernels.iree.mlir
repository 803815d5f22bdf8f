module @mlxcel {
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
    %placed_constant0 = arith.constant 64 : i32
    %placed_constant1 = arith.constant 64 : i32
    %placed_constant2 = arith.constant 0 : i32
    %placed_constant3 = arith.constant 8 : i32
    %placed_constant4 = arith.constant 320 : i32
    %placed_grid0 = arith.constant 1 : index
    %placed_grid1 = arith.constant 1 : index
    %placed_grid2 = arith.constant 1 : index
    %placed:2 = flow.dispatch @kernel0::@cuda_nvptx_fb::@mlx_place[%placed_grid0, %placed_grid1, %placed_grid2](%placed_constant0, %placed_constant1, %placed_constant2, %placed_constant3, %placed_constant4, %batch, %history) : (i32, i32, i32, i32, i32, tensor<912xi32>, tensor<1xi32>) -> (%history, tensor<580xi32>)
    %token_ids = stablehlo.slice %placed#1 [516:580] : (tensor<580xi32>) -> tensor<64xi32>
    %all_weights = util.global.load @"*" : tensor<36032xi32>
    %words_at = arith.constant 0 : index
    %words_count = arith.constant 10240 : index
    %words = flow.tensor.slice %all_weights[%words_at for %words_count] : tensor<36032xi32> -> tensor<10240xi32>
    %model.embed_tokens.weight = flow.tensor.bitcast %words : tensor<10240xi32> -> tensor<320x64xbf16>

    // embedding rows of the tokens
    %embedded_constant0 = arith.constant 320 : i32
    %embedded_constant1 = arith.constant 64 : i32
    %embedded_constant2 = arith.constant 1065353216 : i32
    %embedded_grid0 = arith.constant 64 : index
    %embedded_grid1 = arith.constant 1 : index
    %embedded_grid2 = arith.constant 1 : index
    %embedded:1 = flow.dispatch @kernel1::@cuda_nvptx_fb::@mlx_embed_rows[%embedded_grid0, %embedded_grid1, %embedded_grid2](%embedded_constant0, %embedded_constant1, %embedded_constant2, %token_ids, %model.embed_tokens.weight) : (i32, i32, i32, tensor<64xi32>, tensor<320x64xbf16>) -> (tensor<64x64xf32>)

    // ---- layer0 ----
    %words_2_at = arith.constant 10240 : index
    %words_2_count = arith.constant 64 : index
    %words_2 = flow.tensor.slice %all_weights[%words_2_at for %words_2_count] : tensor<36032xi32> -> tensor<64xi32>
    %model.layers.0.input_layernorm.weight = flow.tensor.bitcast %words_2 : tensor<64xi32> -> tensor<64xf32>
    %layer0.square = stablehlo.multiply %embedded#0, %embedded#0 : tensor<64x64xf32>
    %layer0.start = stablehlo.constant dense<0.000000000e+00> : tensor<f32>
    %layer0.square_sum = stablehlo.reduce(%layer0.square init: %layer0.start) applies stablehlo.add across dimensions = [1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
    %layer0.width = stablehlo.constant dense<6.400000000e+01> : tensor<64xf32>
    %layer0.square_mean = stablehlo.divide %layer0.square_sum, %layer0.width : tensor<64xf32>
    %layer0.eps = stablehlo.constant dense<9.999999747e-06> : tensor<64xf32>
    %layer0.mean_plus_eps = stablehlo.add %layer0.square_mean, %layer0.eps : tensor<64xf32>
    %layer0.rms_scale = stablehlo.rsqrt %layer0.mean_plus_eps : tensor<64xf32>
    %layer0.rms_scales = stablehlo.broadcast_in_dim %layer0.rms_scale, dims = [0] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.normed = stablehlo.multiply %embedded#0, %layer0.rms_scales : tensor<64x64xf32>
    %layer0.gains = stablehlo.broadcast_in_dim %model.layers.0.input_layernorm.weight, dims = [1] : (tensor<64xf32>) -> tensor<64x64xf32>
    %layer0.attn_in = stablehlo.multiply %layer0.normed, %layer0.gains : tensor<64x64xf32>
    %words_3_at = arith.constant 10304 : index
    %words_3_count = arith.constant 2048 : index
    %words_3 = flow.tensor.slice %all_weights[%words_3_at for %words_3_count] : tensor<36032xi32> -> tensor<2048xi32>
    %model.layers.0.self_attn.q_proj.weight = flow.tensor.bitcast %words_3 : tensor<2048xi32> -> tensor<64x64xbf16>
    %layer0.narrow = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.q_grid0 = arith.constant 1 : index
    %layer0.q_grid1 = arith.constant 1 : index
    %layer0.q_grid2 = arith.constant 1 : index
    %layer0.q:1 = flow.dispatch @kernel2::@cuda_nvptx_fb::@mlx_linear[%layer0.q_grid0, %layer0.q_grid1, %layer0.q_grid2](%layer0.narrow, %model.layers.0.self_attn.q_proj.weight) : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> (tensor<64x64xf32>)
    %words_4_at = arith.constant 12352 : index
    %words_4_count = arith.constant 1024 : index
    %words_4 = flow.tensor.slice %all_weights[%words_4_at for %words_4_count] : tensor<36032xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.k_proj.weight = flow.tensor.bitcast %words_4 : tensor<1024xi32> -> tensor<32x64xbf16>
    %layer0.narrow_2 = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.k_grid0 = arith.constant 1 : index
    %layer0.k_grid1 = arith.constant 1 : index
    %layer0.k_grid2 = arith.constant 1 : index
    %layer0.k:1 = flow.dispatch @kernel3::@cuda_nvptx_fb::@mlx_linear[%layer0.k_grid0, %layer0.k_grid1, %layer0.k_grid2](%layer0.narrow_2, %model.layers.0.self_attn.k_proj.weight) : (tensor<64x64xbf16>, tensor<32x64xbf16>) -> (tensor<64x32xf32>)
    %words_5_at = arith.constant 13376 : index
    %words_5_count = arith.constant 1024 : index
    %words_5 = flow.tensor.slice %all_weights[%words_5_at for %words_5_count] : tensor<36032xi32> -> tensor<1024xi32>
    %model.layers.0.self_attn.v_proj.weight = flow.tensor.bitcast %words_5 : tensor<1024xi32> -> tensor<32x64xbf16>
    %layer0.narrow_3 = stablehlo.convert %layer0.attn_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.v_grid0 = arith.constant 1 : index
    %layer0.v_grid1 = arith.constant 1 : index
    %layer0.v_grid2 = arith.constant 1 : index
    %layer0.v:1 = flow.dispatch @kernel3::@cuda_nvptx_fb::@mlx_linear[%layer0.v_grid0, %layer0.v_grid1, %layer0.v_grid2](%layer0.narrow_3, %model.layers.0.self_attn.v_proj.weight) : (tensor<64x64xbf16>, tensor<32x64xbf16>) -> (tensor<64x32xf32>)
    %layer0.rope_cos_constant0 = arith.constant 64 : i32
    %layer0.rope_cos_constant1 = arith.constant 0 : i32
    %layer0.rope_cos_grid0 = arith.constant 2 : index
    %layer0.rope_cos_grid1 = arith.constant 1 : index
    %layer0.rope_cos_grid2 = arith.constant 1 : index
    %layer0.rope_cos:1 = flow.dispatch @kernel4::@cuda_nvptx_fb::@mlx_rope[%layer0.rope_cos_grid0, %layer0.rope_cos_grid1, %layer0.rope_cos_grid2](%layer0.rope_cos_constant0, %layer0.rope_cos_constant1, %batch) : (i32, i32, tensor<912xi32>) -> (tensor<64x8xf32>)
    %layer0.rope_sin_constant0 = arith.constant 64 : i32
    %layer0.rope_sin_constant1 = arith.constant 1 : i32
    %layer0.rope_sin_grid0 = arith.constant 2 : index
    %layer0.rope_sin_grid1 = arith.constant 1 : index
    %layer0.rope_sin_grid2 = arith.constant 1 : index
    %layer0.rope_sin:1 = flow.dispatch @kernel4::@cuda_nvptx_fb::@mlx_rope[%layer0.rope_sin_grid0, %layer0.rope_sin_grid1, %layer0.rope_sin_grid2](%layer0.rope_sin_constant0, %layer0.rope_sin_constant1, %batch) : (i32, i32, tensor<912xi32>) -> (tensor<64x8xf32>)
    %layer0.append_constant0 = arith.constant 0 : i32
    %layer0.append_constant1 = arith.constant 32 : i32
    %layer0.append_constant2 = arith.constant 0 : i32
    %layer0.append_constant3 = arith.constant 4 : i32
    %layer0.append_constant4 = arith.constant 2 : i32
    %layer0.append_grid0 = arith.constant 1 : index
    %layer0.append_grid1 = arith.constant 64 : index
    %layer0.append_grid2 = arith.constant 1 : index
    %layer0.append:2 = flow.dispatch @kernel5::@cuda_nvptx_fb::@mlx_append[%layer0.append_grid0, %layer0.append_grid1, %layer0.append_grid2](%layer0.append_constant0, %layer0.append_constant1, %layer0.append_constant2, %layer0.append_constant3, %layer0.append_constant4, %layer0.q#0, %layer0.k#0, %layer0.v#0, %layer0.rope_cos#0, %layer0.rope_sin#0, %batch, %kv) : (i32, i32, i32, i32, i32, tensor<64x64xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x8xf32>, tensor<64x8xf32>, tensor<912xi32>, tensor<1x32xbf16>) -> (%kv, tensor<64x64xf32>)
    %layer0.attended_constant0 = arith.constant 0 : i32
    %layer0.attended_constant1 = arith.constant 32 : i32
    %layer0.attended_constant2 = arith.constant 0 : i32
    %layer0.attended_constant3 = arith.constant 2 : i32
    %layer0.attended_constant4 = arith.constant -2147483648 : i32
    %layer0.attended_constant5 = arith.constant 1073741824 : i32
    %layer0.attended_constant6 = arith.constant 0 : i32
    %layer0.attended_grid0 = arith.constant 2 : index
    %layer0.attended_grid1 = arith.constant 64 : index
    %layer0.attended_grid2 = arith.constant 1 : index
    %layer0.attended:1 = flow.dispatch @kernel6::@cuda_nvptx_fb::@mlx_attend[%layer0.attended_grid0, %layer0.attended_grid1, %layer0.attended_grid2](%layer0.attended_constant0, %layer0.attended_constant1, %layer0.attended_constant2, %layer0.attended_constant3, %layer0.attended_constant4, %layer0.attended_constant5, %layer0.attended_constant6, %layer0.append#1, %layer0.append#0, %batch, %placed#1) : (i32, i32, i32, i32, i32, i32, i32, tensor<64x64xf32>, tensor<1x32xbf16>, tensor<912xi32>, tensor<580xi32>) -> (tensor<64x64xbf16>)
    %words_6_at = arith.constant 14400 : index
    %words_6_count = arith.constant 2048 : index
    %words_6 = flow.tensor.slice %all_weights[%words_6_at for %words_6_count] : tensor<36032xi32> -> tensor<2048xi32>
    %model.layers.0.self_attn.o_proj.weight = flow.tensor.bitcast %words_6 : tensor<2048xi32> -> tensor<64x64xbf16>
    %layer0.after_attn_grid0 = arith.constant 1 : index
    %layer0.after_attn_grid1 = arith.constant 1 : index
    %layer0.after_attn_grid2 = arith.constant 1 : index
    %layer0.after_attn:1 = flow.dispatch @kernel7::@cuda_nvptx_fb::@mlx_linear[%layer0.after_attn_grid0, %layer0.after_attn_grid1, %layer0.after_attn_grid2](%layer0.attended#0, %model.layers.0.self_attn.o_proj.weight, %embedded#0) : (tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32>) -> (tensor<64x64xf32>)
    %words_7_at = arith.constant 16448 : index
    %words_7_count = arith.constant 64 : index
    %words_7 = flow.tensor.slice %all_weights[%words_7_at for %words_7_count] : tensor<36032xi32> -> tensor<64xi32>
    %model.layers.0.post_attention_layernorm.weight = flow.tensor.bitcast %words_7 : tensor<64xi32> -> tensor<64xf32>
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
    %words_8_at = arith.constant 16512 : index
    %words_8_count = arith.constant 3072 : index
    %words_8 = flow.tensor.slice %all_weights[%words_8_at for %words_8_count] : tensor<36032xi32> -> tensor<3072xi32>
    %model.layers.0.mlp.gate_proj.weight = flow.tensor.bitcast %words_8 : tensor<3072xi32> -> tensor<96x64xbf16>
    %words_9_at = arith.constant 19584 : index
    %words_9_count = arith.constant 3072 : index
    %words_9 = flow.tensor.slice %all_weights[%words_9_at for %words_9_count] : tensor<36032xi32> -> tensor<3072xi32>
    %model.layers.0.mlp.up_proj.weight = flow.tensor.bitcast %words_9 : tensor<3072xi32> -> tensor<96x64xbf16>
    %layer0.narrow_4 = stablehlo.convert %layer0.mlp_in : (tensor<64x64xf32>) -> tensor<64x64xbf16>
    %layer0.act_grid0 = arith.constant 1 : index
    %layer0.act_grid1 = arith.constant 2 : index
    %layer0.act_grid2 = arith.constant 1 : index
    %layer0.act:1 = flow.dispatch @kernel8::@cuda_nvptx_fb::@mlx_linear[%layer0.act_grid0, %layer0.act_grid1, %layer0.act_grid2](%layer0.narrow_4, %model.layers.0.mlp.gate_proj.weight, %model.layers.0.mlp.up_proj.weight) : (tensor<64x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>) -> (tensor<64x96xbf16>)
    %words_10_at = arith.constant 22656 : index
    %words_10_count = arith.constant 3072 : index
    %words_10 = flow.tensor.slice %all_weights[%words_10_at for %words_10_count] : tensor<36032xi32> -> tensor<3072xi32>
    %model.layers.0.mlp.down_proj.weight = flow.tensor.bitcast %words_10 : tensor<3072xi32> -> tensor<64x96xbf16>
    %layer0.out_grid0 = arith.constant 1 : index
    %layer0.out_grid1 = arith.constant 1 : index
    %layer0.out_grid2 = arith.constant 1 : index
    %layer0.out:1 = flow.dispatch @kernel9::@cuda_nvptx_fb::@mlx_linear[%layer0.out_grid0, %layer0.out_grid1, %layer0.out_grid2](%layer0.act#0, %model.layers.0.mlp.down_proj.weight, %layer0.after_attn#0) : (tensor<64x96xbf16>, tensor<64x96xbf16>, tensor<64x64xf32>) -> (tensor<64x64xf32>)
    %words_11_at = arith.constant 25728 : index
    %words_11_count = arith.constant 64 : index
    %words_11 = flow.tensor.slice %all_weights[%words_11_at for %words_11_count] : tensor<36032xi32> -> tensor<64xi32>
    %model.norm.weight = flow.tensor.bitcast %words_11 : tensor<64xi32> -> tensor<64xf32>
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
    %wanted_constant0 = arith.constant 64 : i32
    %wanted_grid0 = arith.constant 16 : index
    %wanted_grid1 = arith.constant 1 : index
    %wanted_grid2 = arith.constant 1 : index
    %wanted:2 = flow.dispatch @kernel10::@cuda_nvptx_fb::@mlx_pick[%wanted_grid0, %wanted_grid1, %wanted_grid2](%wanted_constant0, %final, %batch, %hidden) : (i32, tensor<64x64xf32>, tensor<912xi32>, tensor<16x64xf32>) -> (%hidden, tensor<16x64xf32>)
    %words_12_at = arith.constant 25792 : index
    %words_12_count = arith.constant 10240 : index
    %words_12 = flow.tensor.slice %all_weights[%words_12_at for %words_12_count] : tensor<36032xi32> -> tensor<10240xi32>
    %lm_head.weight = flow.tensor.bitcast %words_12 : tensor<10240xi32> -> tensor<320x64xbf16>
    %narrow = stablehlo.convert %wanted#1 : (tensor<16x64xf32>) -> tensor<16x64xbf16>
    %logits_2_grid0 = arith.constant 1 : index
    %logits_2_grid1 = arith.constant 5 : index
    %logits_2_grid2 = arith.constant 1 : index
    %logits_2:1 = flow.dispatch @kernel11::@cuda_nvptx_fb::@mlx_linear[%logits_2_grid0, %logits_2_grid1, %logits_2_grid2](%narrow, %lm_head.weight, %logits) : (tensor<16x64xbf16>, tensor<320x64xbf16>, tensor<16x320xf32>) -> (%logits)

    // sampling
    %sampled_constant0 = arith.constant 320 : i32
    %sampled_grid0 = arith.constant 16 : index
    %sampled_grid1 = arith.constant 1 : index
    %sampled_grid2 = arith.constant 1 : index
    %sampled:2 = flow.dispatch @kernel12::@cuda_nvptx_fb::@mlx_sample[%sampled_grid0, %sampled_grid1, %sampled_grid2](%sampled_constant0, %batch, %logits_2#0, %placed#0, %results) : (i32, tensor<912xi32>, tensor<16x320xf32>, tensor<1xi32>, tensor<16x48xi32>) -> (%placed#0, %results)
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
    %decoded_grid0 = arith.constant 64 : index
    %decoded_grid1 = arith.constant 1 : index
    %decoded_grid2 = arith.constant 1 : index
    %decoded:6 = flow.dispatch @kernel13::@cuda_nvptx_fb::@mlx_decode[%decoded_grid0, %decoded_grid1, %decoded_grid2](%all_weights, %batch, %history, %kv, %logits, %hidden, %results, %state.scratch) : (tensor<36032xi32>, tensor<96xi32>, tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>, tensor<37056xi32>) -> (%history, %kv, %logits, %hidden, %results, %state.scratch)
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
    %decoded_grid0 = arith.constant 64 : index
    %decoded_grid1 = arith.constant 1 : index
    %decoded_grid2 = arith.constant 1 : index
    %decoded:6 = flow.dispatch @kernel13::@cuda_nvptx_fb::@mlx_decode[%decoded_grid0, %decoded_grid1, %decoded_grid2](%all_weights, %batch, %history, %kv, %logits, %hidden, %results, %state.scratch) : (tensor<36032xi32>, tensor<96xi32>, tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>, tensor<37056xi32>) -> (%history, %kv, %logits, %hidden, %results, %state.scratch)
    util.global.store %decoded#5, @"state.scratch" : tensor<37056xi32>

    // sampling
    %sampled_constant0 = arith.constant 320 : i32
    %sampled_grid0 = arith.constant 1 : index
    %sampled_grid1 = arith.constant 1 : index
    %sampled_grid2 = arith.constant 1 : index
    %sampled:2 = flow.dispatch @kernel12::@cuda_nvptx_fb::@mlx_sample[%sampled_grid0, %sampled_grid1, %sampled_grid2](%sampled_constant0, %batch, %decoded#2, %decoded#0, %decoded#4) : (i32, tensor<96xi32>, tensor<1x320xf32>, tensor<1xi32>, tensor<1x48xi32>) -> (%decoded#0, %decoded#4)
    return %sampled#0, %decoded#1, %decoded#2, %decoded#3, %sampled#1 : tensor<1xi32>, tensor<1x32xbf16>, tensor<1x320xf32>, tensor<1x64xf32>, tensor<1x48xi32>
  }

  // The CUDA kernels.
  hal.executable private @kernel0 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "place1.fatbin"}>]) {
      hal.executable.export public @mlx_place ordinal(0) layout(#hal.pipeline.layout<constants = 5, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [512 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel1 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "rows2.fatbin"}>]) {
      hal.executable.export public @mlx_embed_rows ordinal(0) layout(#hal.pipeline.layout<constants = 3, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel2 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear3.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    }
  }
  hal.executable private @kernel3 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear4.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    }
  }
  hal.executable private @kernel4 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "rows5.fatbin"}>]) {
      hal.executable.export public @mlx_rope ordinal(0) layout(#hal.pipeline.layout<constants = 2, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel5 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "attention_f327.fatbin"}>]) {
      hal.executable.export public @mlx_append ordinal(0) layout(#hal.pipeline.layout<constants = 5, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [128 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel6 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "attention_f326.fatbin"}>]) {
      hal.executable.export public @mlx_attend ordinal(0) layout(#hal.pipeline.layout<constants = 7, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 21504>
    }
  }
  hal.executable private @kernel7 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear8.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    }
  }
  hal.executable private @kernel8 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear9.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 147552>
    }
  }
  hal.executable private @kernel9 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear10.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index], workgroup_local_memory = 131200>
    }
  }
  hal.executable private @kernel10 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "place11.fatbin"}>]) {
      hal.executable.export public @mlx_pick ordinal(0) layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [256 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel11 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "linear12.fatbin"}>]) {
      hal.executable.export public @mlx_linear ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [128 : index, 1 : index, 1 : index], workgroup_local_memory = 82048>
    }
  }
  hal.executable private @kernel12 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "sample13.fatbin"}>]) {
      hal.executable.export public @mlx_sample ordinal(0) layout(#hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [1024 : index, 1 : index, 1 : index]>
    }
  }
  hal.executable private @kernel13 {
    hal.executable.variant public @cuda_nvptx_fb target(<"cuda", "cuda-nvptx-fb">) objects([#hal.executable.object<{path = "decode14.fatbin"}>]) {
      hal.executable.export public @mlx_decode ordinal(0) layout(#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>, #hal.pipeline.binding<storage_buffer, Indirect>], flags = Indirect>) count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {
        hal.return %x, %y, %z : index, index, index
      } <workgroup_size = [288 : index, 1 : index, 1 : index], workgroup_local_memory = 232448>
    }
  }
}
