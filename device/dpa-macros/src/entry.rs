//! Checks and expansion.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Type};

const EVENT_SIGNATURE: &str =
    "an event handler is `fn NAME(context: &mut T) -> Next`, where T has a layout hash (dpa::abi::Layout)";
const RPC_SIGNATURE: &str = "an RPC is `fn NAME(argument: u64) -> u64`, `fn NAME(argument: &T) -> u64` or `fn \
    NAME(argument: &mut T) -> u64`, where T has a layout hash (dpa::abi::Layout)";

pub(crate) fn event_handler(attribute: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let argument = check(attribute, function, EVENT_SIGNATURE)?;
    let Type::Reference(reference) = argument else { return Err(Error::new_spanned(argument, EVENT_SIGNATURE)) };
    if reference.mutability.is_none() {
        return Err(Error::new_spanned(reference, EVENT_SIGNATURE));
    }
    if matches!(function.sig.output, ReturnType::Default) {
        return Err(Error::new_spanned(&function.sig, EVENT_SIGNATURE));
    }
    let context = &reference.elem;
    let name = &function.sig.ident;
    let symbol = name.to_string();
    let module = format_ident!("__event_handler_{name}");
    Ok(quote! {
        #function

        // Exported symbols, link sections and calls of `dpa::entry` are unsafe code of this macro; the image itself
        // forbids its own.
        #[doc(hidden)]
        #[allow(non_snake_case)]
        mod #module {
            use super::*;

            #[unsafe(export_name = #symbol)]
            extern "C" fn entry(argument: u64) -> ! {
                // SAFETY: the host calls the symbol by the record below, whose layout hash it has compared, and as that
                // asks for.
                unsafe { ::dpa::entry::event::<#context>(argument, super::#name) }
            }

            #[used]
            #[unsafe(link_section = ".flexcast.entries")]
            static RECORD: ::dpa::entry::Record =
                ::dpa::entry::Record::event(#symbol, entry, <#context as ::dpa::abi::Layout>::HASH);
        }
    })
}

pub(crate) fn rpc(attribute: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let argument = check(attribute, function, RPC_SIGNATURE)?;
    let returns_u64 = match &function.sig.output {
        ReturnType::Type(_, ty) => is_u64(ty),
        ReturnType::Default => false,
    };
    if !returns_u64 {
        return Err(Error::new_spanned(&function.sig, RPC_SIGNATURE));
    }
    let name = &function.sig.ident;
    let (body, hashed) = match argument {
        Type::Reference(reference) => {
            let ty = &reference.elem;
            // SAFETY (of what this expands to): as for an event handler.
            let call = if reference.mutability.is_some() {
                quote!(unsafe { ::dpa::entry::rpc_with_mut::<#ty>(argument, super::#name) })
            } else {
                quote!(unsafe { ::dpa::entry::rpc_with::<#ty>(argument, super::#name) })
            };
            (call, quote!(#ty))
        }
        ty if is_u64(ty) => (quote!(super::#name(argument)), quote!(u64)),
        other => return Err(Error::new_spanned(other, RPC_SIGNATURE)),
    };
    let symbol = name.to_string();
    let unpack_symbol = format!("{symbol}__unpack");
    let module = format_ident!("__rpc_{name}");
    Ok(quote! {
        #function

        // Exported symbols, link sections and calls of `dpa::entry` are unsafe code of this macro; the image itself
        // forbids its own.
        #[doc(hidden)]
        #[allow(non_snake_case)]
        mod #module {
            use super::*;

            #[unsafe(export_name = #symbol)]
            extern "C" fn entry(argument: u64) -> u64 {
                #body
            }

            #[unsafe(export_name = #unpack_symbol)]
            extern "C" fn unpack(buffer: u64, function: extern "C" fn(u64) -> u64) -> u64 {
                // SAFETY: the runtime calls this symbol with the buffer that the host filled.
                unsafe { ::dpa::entry::unpack(buffer, function) }
            }

            #[used]
            #[unsafe(link_section = ".flexcast.entries")]
            static RECORD: ::dpa::entry::Record =
                ::dpa::entry::Record::rpc(#symbol, entry, unpack, <#hashed as ::dpa::abi::Layout>::HASH);
        }
    })
}

/// The only parameter's type, after the checks that both kinds share.
fn check<'a>(attribute: TokenStream, function: &'a ItemFn, signature: &str) -> Result<&'a Type> {
    let sig = &function.sig;
    if !attribute.is_empty() {
        return Err(Error::new_spanned(attribute, "this attribute takes no arguments"));
    }
    if sig.asyncness.is_some() || sig.unsafety.is_some() || sig.abi.is_some() || sig.variadic.is_some() {
        return Err(Error::new_spanned(sig, signature));
    }
    if !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(&sig.generics, "an entry cannot be generic: the ELF needs one symbol"));
    }
    match (sig.inputs.len(), sig.inputs.first()) {
        (1, Some(FnArg::Typed(argument))) => Ok(&argument.ty),
        _ => Err(Error::new_spanned(sig, signature)),
    }
}

fn is_u64(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident("u64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn event(function: ItemFn) -> core::result::Result<String, String> {
        event_handler(TokenStream::new(), &function).map(|t| t.to_string()).map_err(|e| e.to_string())
    }

    fn call(function: ItemFn) -> core::result::Result<String, String> {
        rpc(TokenStream::new(), &function).map(|t| t.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn an_event_handler_gets_a_symbol_and_a_record() {
        let code = event(parse_quote! { fn wake(context: &mut ReceiveContext) -> Next { Next::Reschedule } }).unwrap();
        assert!(code.contains("export_name = \"wake\""));
        assert!(code.contains("link_section = \".flexcast.entries\""));
        assert!(code.contains("< ReceiveContext as :: dpa :: abi :: Layout > :: HASH"));
    }

    #[test]
    fn an_rpc_gets_an_unpack_function() {
        for function in [
            parse_quote! { fn ask(argument: u64) -> u64 { argument } },
            parse_quote! { fn ask(argument: &Question) -> u64 { 0 } },
            parse_quote! { fn ask(argument: &mut Question) -> u64 { 0 } },
        ] {
            let code = call(function).unwrap();
            assert!(code.contains("export_name = \"ask__unpack\""));
        }
    }

    #[test]
    fn wrong_event_handlers_are_refused() {
        for function in [
            parse_quote! { fn wake(context: &ReceiveContext) -> Next { Next::Reschedule } },
            parse_quote! { fn wake(context: ReceiveContext) -> Next { Next::Reschedule } },
            parse_quote! { fn wake(context: &mut ReceiveContext) {} },
            parse_quote! { fn wake() -> Next { Next::Reschedule } },
            parse_quote! { fn wake(a: &mut A, b: &mut B) -> Next { Next::Reschedule } },
            parse_quote! { async fn wake(a: &mut A) -> Next { Next::Reschedule } },
            parse_quote! { unsafe fn wake(a: &mut A) -> Next { Next::Reschedule } },
        ] {
            assert_eq!(event(function).unwrap_err(), EVENT_SIGNATURE);
        }
        let generic = parse_quote! { fn wake<T>(a: &mut T) -> Next { Next::Reschedule } };
        assert!(event(generic).unwrap_err().contains("generic"));
    }

    #[test]
    fn wrong_rpcs_are_refused() {
        for function in [
            parse_quote! { fn ask(argument: u32) -> u64 { 0 } },
            parse_quote! { fn ask(argument: u64) -> u32 { 0 } },
            parse_quote! { fn ask(argument: u64) {} },
            parse_quote! { fn ask(a: u64, b: u64) -> u64 { 0 } },
            parse_quote! { fn ask(&self) -> u64 { 0 } },
        ] {
            assert_eq!(call(function).unwrap_err(), RPC_SIGNATURE);
        }
        let function: ItemFn = parse_quote! { fn ask(a: u64) -> u64 { 0 } };
        assert!(rpc(quote!(now), &function).unwrap_err().to_string().contains("no arguments"));
    }
}
