use flexio::{Device, Provider};

fn run<'a>() -> Device<'a> {
    let provider = Provider::system().unwrap();
    provider.open("mlx5_0").unwrap()
}

fn main() {
    let _ = run;
}
