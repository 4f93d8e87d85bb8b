//! A table taken for one of longer rows.
use dpa::Table;
use dpa::abi::{Operation, WorkerContext};

pub fn confuse(context: &WorkerContext) -> Option<Operation> {
    Table::attach(&context.rows).get(0) //~ E0308
}
