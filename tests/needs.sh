# Sourced by scripts that compile everything: names missing packages at once, before minutes of compiling
# end with an error of a build script.

# libzmq, NIXL's stubs and zstd are C and C++ sources; NIXL's bindings are made with libclang.
require_packages() {
  local missing=()
  command -v cargo >/dev/null || { echo "missing: Rust 1.95 or later, see https://rustup.rs" >&2; exit 1; }
  command -v c++ >/dev/null || missing+=(g++)
  [ -n "${LIBCLANG_PATH-}" ] || [ "$(uname)" = Darwin ] ||
    compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null ||
    ldconfig -p 2>/dev/null | grep -q 'libclang[-.][0-9s]' || missing+=(libclang-dev)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} -gt 0 ] || return 0
  local command="apt-get install ${missing[*]}"
  [ "$(id -u)" = 0 ] || command="sudo $command"
  echo "missing packages: install them with \`$command\`, or the packages of your system with these contents" >&2
  exit 1
}
