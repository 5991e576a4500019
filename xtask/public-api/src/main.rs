//! Writes the public items in a file of rustdoc's JSON to the standard output, as `cargo public-api -sss` lists them:
//! without blanket, automatic and derived implementations.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("name the JSON file that rustdoc wrote")?;
    let api = public_api::Builder::from_rustdoc_json(file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    print!("{api}");
    Ok(())
}
