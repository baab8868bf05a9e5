//! Operators: the rows of one table each, made into times for the shapes of a model.

pub(crate) mod attention;
pub(crate) mod collective;
pub(crate) mod experts;
pub(crate) mod gemm;
mod rows;
