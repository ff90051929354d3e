//! Compiles the library as one C file, or asks pkg-config for the installed one (feature `system`).
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{:?}: {}", command, e));
    if !output.status.success() {
        panic!("{:?}: {}", command, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn words(variable: &str, otherwise: &str) -> Vec<String> {
    println!("cargo:rerun-if-env-changed={}", variable);
    let given = env::var(variable).ok().filter(|value| !value.trim().is_empty());
    let value = given.unwrap_or_else(|| otherwise.to_string());
    value.split_whitespace().map(String::from).collect()
}

/// The flags of the installed library.
fn system() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let flags = run(Command::new("pkg-config").args(["--libs", "memopt"]));
    for flag in flags.split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", folder);
        } else if let Some(name) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", name);
        }
    }
}

/// The folder of memopt.c: that of the package or, in the repository, a new one.
fn source(manifest: &Path, out: &Path) -> PathBuf {
    let vendor = manifest.join("vendor");
    if vendor.join("memopt.c").exists() {
        println!("cargo:rerun-if-changed={}", vendor.display());
        return vendor;
    }
    let repository = manifest.join("../../..");
    for folder in ["include", "lib", "kernels", "tools/single_file"] {
        println!("cargo:rerun-if-changed={}", repository.join(folder).display());
    }
    run(Command::new(repository.join("tools/single_file")).arg(out));
    out.to_path_buf()
}

fn compiled(manifest: &Path, out: &Path) {
    let folder = source(manifest, out);
    let target = env::var("TARGET").unwrap();
    let cross = env::var("HOST").unwrap() != target;
    let tools = if cross { format!("{}-", target.replace("-unknown", "")) } else { String::new() };
    let compiler = words("CC", &format!("{}{}", tools, if cross { "gcc" } else { "cc" }));
    let archiver = words("AR", &format!("{}ar", tools));
    let object = out.join("memopt.o");
    run(Command::new(&compiler[0])
        .args(&compiler[1..])
        .args(["-std=c11", "-O2", "-fPIC", "-c"])
        .args(words("CFLAGS", ""))
        .arg(folder.join("memopt.c"))
        .arg("-o")
        .arg(&object));
    let archive = out.join("libmemopt.a");
    let _ = std::fs::remove_file(&archive);
    run(Command::new(&archiver[0]).args(&archiver[1..]).arg("crs").arg(&archive).arg(&object));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=memopt");
    for library in ["m", "pthread", "dl"] {
        println!("cargo:rustc-link-lib={}", library);
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    if env::var_os("CARGO_FEATURE_SYSTEM").is_some() {
        system();
    } else {
        compiled(&manifest, &out);
    }
}
