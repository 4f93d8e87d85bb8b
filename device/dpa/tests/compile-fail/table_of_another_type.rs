//! A table taken for one of longer rows.
use dpa::Table;
use dpa::abi::{Operation, ReceiveContext};

pub fn confuse(context: &ReceiveContext) -> Option<Operation> {
    Table::attach(&context.rows).get(0) //~ E0308
}
