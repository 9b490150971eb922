//! The families. A family is a table of definitions, `DEFS`; its helpers stand below it.

mod binary;
mod unary_chebyshev;
mod unary_special;
mod unary;
mod pointwise;
mod compare;
mod binary_math;
mod binary_bits;
mod activation_backward;
mod activation;
mod upsample;
mod pool_avg;
mod pool_adaptive;
mod pool;
mod matmul;
mod shape_scatter;
mod shape_pad;
mod shape;
mod optim;
mod matmul_solve;
mod index_scatter;
mod index_rows;
mod index;
mod embedding;
mod create;
mod conv;
mod loss;
mod loss_nll;
mod norm;
mod norm_batch;
mod random;
mod random_bits;
mod reduce;
mod reduce_index;
mod reduce_moments;
mod reduce_norm;
mod scan;
mod softmax;
mod sort;
mod sort_search;

use crate::def::OpDef;

/// All families.
pub(crate) static FAMILIES: &[&[OpDef]] = &[binary::DEFS, unary_special::DEFS, unary::DEFS, pointwise::DEFS, compare::DEFS, binary_math::DEFS, binary_bits::DEFS, activation_backward::DEFS, activation::DEFS, conv::DEFS, matmul::DEFS, shape_scatter::DEFS, shape_pad::DEFS, shape::DEFS, optim::DEFS, matmul_solve::DEFS, index_scatter::DEFS, index_rows::DEFS, index::DEFS, embedding::DEFS, create::DEFS, pool::DEFS, pool_adaptive::DEFS, pool_avg::DEFS, upsample::DEFS, loss::DEFS, loss_nll::DEFS, norm::DEFS, norm_batch::DEFS, random::DEFS, reduce::DEFS, reduce_index::DEFS, reduce_moments::DEFS, reduce_norm::DEFS, scan::DEFS, softmax::DEFS, sort::DEFS, sort_search::DEFS];
