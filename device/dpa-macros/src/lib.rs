//! `#[event_handler]` and `#[rpc]`: a typed Rust function becomes an entry of the image, that is an exported symbol
//! plus a record in section `.flexcast.entries` with name, kind and the layout hash of its argument type.
#![forbid(unsafe_code)]

mod entry;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// `fn NAME(context: &mut T) -> Next` becomes event handler `NAME`. The host passes the device address of a `T`.
///
/// ```ignore
/// #[dpa::event_handler]
/// fn hello(context: &mut HelloContext) -> dpa::Next { ... }
/// ```
#[proc_macro_attribute]
pub fn event_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as syn::ItemFn);
    entry::event_handler(attribute.into(), &function).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// `fn NAME(argument: u64) -> u64`, `fn NAME(argument: &T) -> u64` or `fn NAME(argument: &mut T) -> u64` becomes RPC
/// `NAME` with the unpack function `NAME__unpack`. The host passes a number, or the device address of a `T`.
///
/// ```ignore
/// #[dpa::rpc]
/// fn echo(argument: u64) -> u64 { argument }
/// ```
#[proc_macro_attribute]
pub fn rpc(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as syn::ItemFn);
    entry::rpc(attribute.into(), &function).unwrap_or_else(syn::Error::into_compile_error).into()
}
