//! The families. A family is a table of definitions, `DEFS`; its helpers stand below it.

mod activation;
mod activation_backward;
mod attention;
mod attention_tiles;
mod bessel;
mod bessel_series;
mod binary;
mod binary_bits;
mod binary_math;
mod compare;
mod control;
mod conv;
mod conv_depthwise;
mod conv_taps;
mod create;
mod ctc;
mod distance;
mod embedding;
mod embedding_bag;
mod fft;
mod grid;
mod histogram;
mod igamma;
mod index;
mod index_mask;
mod index_rows;
mod index_scatter;
mod linalg_eigh;
mod linalg_exp;
mod linalg_jacobi;
mod linalg_lu;
mod linalg_parts;
mod linalg_qr;
mod linalg_solve;
mod linalg_svd;
mod loss;
mod loss_multilabel;
mod loss_nll;
mod matmul;
mod matmul_low;
mod norm;
mod norm_batch;
mod norm_sync;
mod optim;
mod pointwise;
mod polynomial;
mod pool;
mod pool_adaptive;
mod pool_avg;
mod pool_fractional;
mod quantize;
mod random;
mod random_bits;
mod random_counts;
mod random_slopes;
mod reduce;
mod reduce_index;
mod reduce_moments;
mod reduce_norm;
mod rnn;
mod scan;
mod segment;
mod shape;
mod shape_pad;
mod shape_scatter;
mod softmax;
mod sort;
mod sort_search;
mod sort_unique;
mod transformer;
mod unary;
mod unary_chebyshev;
mod unary_special;
mod upsample;

use crate::def::OpDef;

/// All families.
pub(crate) static FAMILIES: &[&[OpDef]] = &[
    control::DEFS,
    binary::DEFS,
    unary_special::DEFS,
    bessel::DEFS,
    polynomial::DEFS,
    igamma::DEFS,
    unary::DEFS,
    pointwise::DEFS,
    compare::DEFS,
    binary_math::DEFS,
    binary_bits::DEFS,
    activation_backward::DEFS,
    activation::DEFS,
    attention::DEFS,
    conv::DEFS,
    matmul::DEFS,
    matmul_low::DEFS,
    shape_scatter::DEFS,
    shape_pad::DEFS,
    shape::DEFS,
    optim::DEFS,
    linalg_solve::DEFS,
    linalg_lu::DEFS,
    linalg_qr::DEFS,
    linalg_eigh::DEFS,
    linalg_svd::DEFS,
    linalg_exp::DEFS,
    index_scatter::DEFS,
    index_rows::DEFS,
    index::DEFS,
    index_mask::DEFS,
    ctc::DEFS,
    embedding::DEFS,
    embedding_bag::DEFS,
    grid::DEFS,
    create::DEFS,
    fft::DEFS,
    pool::DEFS,
    pool_adaptive::DEFS,
    pool_avg::DEFS,
    pool_fractional::DEFS,
    quantize::DEFS,
    upsample::DEFS,
    loss::DEFS,
    loss_multilabel::DEFS,
    loss_nll::DEFS,
    norm::DEFS,
    norm_batch::DEFS,
    norm_sync::DEFS,
    random::DEFS,
    random_counts::DEFS,
    random_slopes::DEFS,
    reduce::DEFS,
    reduce_index::DEFS,
    reduce_moments::DEFS,
    reduce_norm::DEFS,
    distance::DEFS,
    rnn::DEFS,
    scan::DEFS,
    segment::DEFS,
    softmax::DEFS,
    sort::DEFS,
    sort_search::DEFS,
    histogram::DEFS,
    sort_unique::DEFS,
    transformer::DEFS,
];
