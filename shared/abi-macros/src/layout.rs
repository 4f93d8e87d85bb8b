//! Checks and expansion.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Data, DeriveInput, Error, Fields, Path, Result, Token};

const STRUCTURE: &str = "Layout is for structures with named fields: host and firmware agree on them by name";
const GENERIC: &str = "a structure with a layout cannot be generic: every instance would need a layout of its own";
const REPR_C: &str = "a structure with a layout needs #[repr(C)] (or #[repr(C, align(N))]): the order of fields is \
    otherwise the compiler's";
const PACKED: &str = "a structure with a layout cannot be packed: its fields would be loaded byte by byte";
const PATH: &str = "expected #[layout(crate = path::of::flexcast_abi)]";

pub(crate) fn derive(item: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &item.data else { return Err(Error::new_spanned(&item.ident, STRUCTURE)) };
    let Fields::Named(fields) = &data.fields else { return Err(Error::new_spanned(&item.ident, STRUCTURE)) };
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(&item.generics, GENERIC));
    }
    check_repr(item)?;
    let abi = path(item)?;
    let name = &item.ident;
    let text = name.to_string();
    let (names, types): (Vec<_>, Vec<_>) = fields.named.iter().map(|field| (&field.ident, &field.ty)).unzip();
    let texts = names.iter().flat_map(|name| name.as_ref().map(ToString::to_string));
    Ok(quote! {
        // SAFETY: `repr(C)`, so that the fields lie in the order written; each has a layout; all are in the hash, and
        // nothing else is there.
        #[automatically_derived]
        unsafe impl #abi::Layout for #name {
            const HASH: u64 = {
                assert!(
                    0 #( + ::core::mem::size_of::<#types>() )* == ::core::mem::size_of::<Self>(),
                    "the structure has padding: name those bytes as reserved fields"
                );
                #abi::Fnv::new()
                    .bytes(#text.as_bytes())
                    .u64(::core::mem::size_of::<Self>() as u64)
                    .u64(::core::mem::align_of::<Self>() as u64)
                    #(
                        .bytes(#texts.as_bytes())
                        .u64(::core::mem::offset_of!(Self, #names) as u64)
                        .u64(<#types as #abi::Layout>::HASH)
                    )*
                    .finish()
            };
        }

        // Also where nobody asks for the hash.
        const _: u64 = <#name as #abi::Layout>::HASH;
    })
}

fn check_repr(item: &DeriveInput) -> Result<()> {
    let mut is_c = false;
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("packed") {
                return Err(meta.error(PACKED));
            }
            is_c |= meta.path.is_ident("C");
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<syn::LitInt>()?;
            }
            Ok(())
        })?;
    }
    if is_c { Ok(()) } else { Err(Error::new_spanned(&item.ident, REPR_C)) }
}

/// The crate that the trait is in.
fn path(item: &DeriveInput) -> Result<Path> {
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("layout")) {
        let found = attribute.parse_args_with(|input: syn::parse::ParseStream<'_>| {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            Punctuated::<Path, Token![,]>::parse_separated_nonempty(input)
        });
        let found = found.map_err(|error| Error::new(error.span(), PATH))?;
        if let Some(path) = found.first() {
            return Ok(path.clone());
        }
    }
    Ok(syn::parse_quote!(::flexcast_abi))
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn expand(item: DeriveInput) -> core::result::Result<String, String> {
        derive(&item).map(|tokens| tokens.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn name_offset_and_type_of_each_field_are_hashed() {
        let code = expand(parse_quote! { #[repr(C, align(64))] struct Job { count: u64, rest: [u64; 7] } }).unwrap();
        for part in ["impl :: flexcast_abi :: Layout for Job", "\"Job\"", "\"count\"", "offset_of ! (Self , rest)"] {
            assert!(code.contains(part), "{part}: {code}");
        }
        assert!(code.contains("< [u64 ; 7] as :: flexcast_abi :: Layout > :: HASH"), "{code}");
    }

    #[test]
    fn the_crate_can_be_named() {
        let code = expand(parse_quote! { #[repr(C)] #[layout(crate = dpa::abi)] struct Job { count: u64 } }).unwrap();
        assert!(code.contains("impl dpa :: abi :: Layout for Job") && !code.contains("flexcast_abi"), "{code}");
        assert_eq!(expand(parse_quote! { #[repr(C)] #[layout(dpa)] struct Job { count: u64 } }).unwrap_err(), PATH);
    }

    #[test]
    fn what_has_no_order_of_fields_is_refused() {
        let cases: [(DeriveInput, &str); 7] = [
            (parse_quote! { struct Job { count: u64 } }, REPR_C),
            (parse_quote! { #[repr(align(64))] struct Job { count: u64 } }, REPR_C),
            (parse_quote! { #[repr(C, packed)] struct Job { count: u64 } }, PACKED),
            (parse_quote! { #[repr(C)] struct Job<T> { count: T } }, GENERIC),
            (parse_quote! { #[repr(C)] struct Job(u64); }, STRUCTURE),
            (parse_quote! { #[repr(C)] union Job { count: u64 } }, STRUCTURE),
            (parse_quote! { #[repr(u32)] enum Job { Count } }, STRUCTURE),
        ];
        for (item, reason) in cases {
            assert_eq!(expand(item).unwrap_err(), reason);
        }
    }
}
