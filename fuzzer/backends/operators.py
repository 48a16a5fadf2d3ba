"""How ATen operators round, by overload packet name. What stands in no list rounds its result once or a few times."""

#: These choose, copy or count values: their float results carry no rounding.
EXACT = frozenset(
    """abs neg relu relu_ clamp clamp_ clamp_min clamp_max hardtanh hardtanh_ threshold maximum minimum max min
    amax amin aminmax fmax fmin sort topk kthvalue median nanmedian mode cummax cummin max_pool1d
    max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d fractional_max_pool2d gather index
    index_select take embedding where masked_fill masked_fill_ masked_scatter masked_select scatter scatter_
    index_put index_put_ index_fill index_copy slice_scatter select_scatter diagonal_scatter cat stack
    constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d copy copy_ clone contiguous _to_copy
    to lift_fresh lift_fresh_copy detach alias fill fill_ zero_ zeros ones full empty new_zeros new_ones
    new_full new_empty zeros_like ones_like full_like empty_like empty_strided new_empty_strided scalar_tensor
    arange eye tril triu flip roll repeat repeat_interleave tile round floor ceil trunc sign sgn nan_to_num
    nextafter copysign frexp ldexp fmod _unique _unique2 unique_consecutive unique_dim im2col pixel_shuffle
    pixel_unshuffle channel_shuffle upsample_nearest2d _upsample_nearest_exact2d real imag view_as_real
    view_as_complex heaviside rand rand_like randn randn_like bernoulli native_dropout uniform_ normal_
    _local_scalar_dense item nonzero searchsorted bucketize tril_indices triu_indices max_unpool2d""".split()
)

#: One rounding each, whose absence float64 can tell (a product of two float32 is exact in float64).
ONE_ROUNDING = frozenset(
    """add add_ sub sub_ rsub mul mul_ div div_ sqrt sqrt_ reciprocal reciprocal_ square""".split()
)

#: These add up many terms: their operands are moved as well, and taken in another order where that is possible.
MANY_ROUNDINGS = frozenset(
    """sum nansum mean prod cumsum cumprod logcumsumexp var std var_mean std_mean norm linalg_vector_norm logsumexp
    mm bmm addmm baddbmm addmv addbmm mv dot vdot addr convolution _convolution avg_pool1d avg_pool2d avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d native_layer_norm native_group_norm
    native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit cudnn_batch_norm _softmax
    _log_softmax _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
    upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_linear1d
    upsample_trilinear3d grid_sampler_2d grid_sampler_3d _cdist_forward _euclidean_dist _pdist_forward
    scatter_add scatter_add_ scatter_reduce index_add index_add_ index_reduce _fft_r2c _fft_c2c _fft_c2r
    linalg_inv_ex linalg_solve_ex _linalg_solve_ex _linalg_svd _linalg_det linalg_lu_factor_ex lstm gru rnn_tanh
    mkldnn_rnn_layer renorm _weight_norm_interface roi_align""".split()
)

#: These draw random numbers, other ones in each dtype, and return them (what they do in place keeps its own dtype).
RANDOM = frozenset("""rand rand_like randn randn_like bernoulli native_dropout normal""".split())
