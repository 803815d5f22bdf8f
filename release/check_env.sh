#!/usr/bin/env bash
# ./build.sh check-env [linux-x86_64|linux-aarch64|windows-x86_64]: reports the tools that building for that platform
# (default: this machine) needs, with the command that installs a missing one. It fetches and writes nothing. With
# --required it prints only what ./build.sh cannot do without and does not find, and one command that installs all of
# it. Exit status 1 if a required tool is missing. `mlxcel doctor` checks what running mlxcel needs.
set -euo pipefail

failed=0
required_only=0
missing=()  # required tools that the package manager has

report() {  # VERDICT SUBJECT TEXT [FIX]
  if [ "$1" = FAIL ]; then failed=1; elif [ $required_only = 1 ]; then return; fi
  printf '%-4s  %-16s %s\n' "$1" "$2" "$3"
  if [ -n "${4:-}" ] && [ $required_only = 0 ]; then printf '      %-16s fix: %s\n' '' "$4"; fi
}

# Prints the command that installs these tools here. Columns: the subject, then its package for apt, dnf, pacman, zypper
# and apk.
install_command() {  # SUBJECT...
  local manager column=1 names
  for manager in apt-get dnf pacman zypper apk; do
    column=$((column + 1))
    command -v "$manager" >/dev/null || continue
    names=$(awk -v column=$column -v subjects=" $* " 'index(subjects, " " $1 " ") && !seen[$column]++ {printf " %s", $column}' <<'END'
cc               gcc                    gcc                     gcc                   gcc                     build-base
c++              g++                    gcc-c++                 gcc                   gcc-c++                 build-base
python3          python3                python3                 python                python3                 python3
pip              python3-pip            python3-pip             python-pip            python3-pip             py3-pip
cargo            cargo                  cargo                   rust                  cargo                   cargo
git              git                    git                     git                   git                     git
tar              tar                    tar                     tar                   tar                     tar
clang            clang                  clang                   clang                 clang                   clang
qemu-aarch64     qemu-user-static       qemu-user-static        qemu-user             qemu-linux-user         qemu-aarch64
wine             wine64                 wine                    wine                  wine                    wine
zip              zip                    zip                     zip                   zip                     zip
readelf          binutils               binutils                binutils              binutils                binutils
END
)
    [ -n "$names" ] || break
    case $manager in
      pacman) echo "pacman -S$names" ;;
      apk) echo "apk add$names" ;;
      *) echo "$manager install$names" ;;
    esac
    return
  done
  echo "install $* with your system's package manager"
}

fail() {  # SUBJECT TEXT
  missing+=("$1")
  report FAIL "$1" "$2" "$(install_command "$1")"
}

at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# Checks that a program exists and, with a MINIMUM, that its version is not older.
require() {  # SUBJECT COMMAND WHY [VERSION [MINIMUM]]
  local found
  if ! found=$(command -v "$2"); then
    fail "$1" "$2 is not installed: $3"
  elif [ -n "${5:-}" ] && ! at_least "${4:-0}" "$5"; then
    fail "$1" "$found has version ${4:-unknown}; $5 or newer is needed: $3"
  else
    report OK "$1" "$found${4:+, version $4}"
  fi
}

# A tool that only some commands of ./build.sh need.
check_optional() {  # SUBJECT COMMAND WHY
  local found
  if found=$(command -v "$2"); then report OK "$1" "$found"; else report WARN "$1" "$2 is not installed: $3" "$(install_command "$1")"; fi
}

version_of() { "$@" 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)*' | head -n 1 || true; }

# A tool that ./build.sh fetches if the system's is missing or too old; never a failure.
check_fetched() {  # SUBJECT COMMAND [VERSION MINIMUM]
  if command -v "$2" >/dev/null && { [ -z "${4:-}" ] || at_least "${3:-0}" "$4"; }; then
    report OK "$1" "$(command -v "$2")${3:+, version $3}"
  else
    report OK "$1" 'missing or too old: ./build.sh fetches a pinned one'
  fi
}

check_required() {
  local pip
  require cc "${CC:-cc}" 'needed to compile mlxcel' "$(version_of "${CC:-cc}" -dumpfullversion -dumpversion)"
  require c++ c++ "IREE's configure step needs it"
  require python3 python3 'needed for pip, which fetches tools' "$(version_of python3 --version)" 3.10
  if command -v python3 >/dev/null; then
    pip=$(version_of python3 -m pip --version)
    if [ -n "$pip" ]; then
      report OK pip "$pip"
    else
      fail pip 'python3 has no pip, which fetches iree-compile, NVRTC and headers'
    fi
  else
    missing+=(pip)
  fi
  require cargo cargo 'needed to fetch C sources that are published as crates' "$(version_of cargo --version)" 1.65
  require tar tar 'needed to unpack sources'
  require git git 'needed to apply third_party/iree.patch and to find release tags'
}

print_command() { [ ${#missing[@]} -eq 0 ] || printf 'to install what is missing: %s\n' "$(install_command "${missing[@]}")"; }

check_build_tools() {
  check_required
  report OK zig './build.sh fetches a pinned one (PyPI ziglang)'
  check_fetched cmake cmake "$(version_of cmake --version)" 3.26
  check_fetched ninja ninja
  check_optional clang clang './build.sh fuzz and peer need it'
  check_optional readelf readelf './build.sh release checks the glibc version of packages with it'
  check_optional zip zip './build.sh release packs the Windows packages with it'
  local free
  free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
  if [ "${free:-0}" -ge 6 ]; then
    report OK disk "$free GiB free"
  else
    report WARN disk "$free GiB free; dependencies, IREE and the tests need about 5 GiB" 'free disk space, or clone to a larger disk'
  fi
}

check_cross_tools() {  # PLATFORM
  case $1 in
    linux-aarch64)
      if command -v apt-get >/dev/null; then
        report OK qemu-aarch64 './build.sh test-aarch64 fetches it into build/ if it is missing'
      else
        check_optional qemu-aarch64 qemu-aarch64-static 'needed to run the build here'
      fi
      ;;
    windows-x86_64)
      check_optional wine wine 'needed to run the build here'
      ;;
  esac
}

# A GPU needs only the driver. Without one, models run on the CPU.
check_driver() {
  local name
  if name=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1) && [ -n "$name" ]; then
    report OK gpu "$name"
  elif ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    report WARN gpu 'libcuda.so.1 is installed, but nvidia-smi finds no GPU' 'run mlxcel doctor for the reason'
  else
    report WARN gpu 'no NVIDIA driver: models run on the CPU' "install your system's NVIDIA driver package; no CUDA toolkit is needed"
  fi
}

check_variables() {
  local name value
  for name in CUDA_PATH CUDA_HOME; do
    value=${!name:-}
    [ -n "$value" ] || continue
    if [ -d "$value" ]; then
      report OK "$name" "$value: building needs no toolkit; mlxcel searches NVRTC there last"
    else
      report WARN "$name" "'$value' is not a folder" "unset $name: no CUDA toolkit is needed"
    fi
  done
  [ -z "${NVCC_CCBIN:-}" ] || report OK NVCC_CCBIN "$NVCC_CCBIN: not used; neither the build nor mlxcel runs nvcc"
  value=${CUDA_COMPUTE_CAP:-}
  [ -n "$value" ] || return 0
  if grep -qF "    {${value/./}, " base/gpu.c; then  # the table of supported GPUs
    report OK CUDA_COMPUTE_CAP "$value: not used by the build; \`mlxcel compile --target cuda\` means cuda:sm_${value/./} if no GPU is visible"
  else
    report WARN CUDA_COMPUTE_CAP "'$value' is not a GPU that mlxcel compiles for" 'set it to a value such as 90 or 9.0, or unset it'
  fi
}

check_windows() {
  report WARN platform "$(uname -s): ./build.sh builds on Linux" 'use WSL2; docs/windows.md describes a native build'
  local name
  for name in clang-cl cmake ninja python cargo git; do
    if command -v "$name" >/dev/null; then report OK "$name" "$(command -v "$name")"; else
      report FAIL "$name" "$name is not on PATH" 'docs/windows.md describes a native build'
    fi
  done
  if [ -e "${SYSTEMROOT:-/c/Windows}/System32/nvcuda.dll" ]; then report OK gpu nvcuda.dll; else
    report WARN gpu 'no nvcuda.dll: models run on the CPU' "install NVIDIA's driver; no CUDA toolkit is needed"
  fi
}

main() {
  local here platform
  if [ "${1:-}" = --required ]; then
    required_only=1
    check_required
    print_command
    return $failed
  fi
  case $(uname -s) in
    Linux) here=linux-$(uname -m) ;;
    MINGW* | MSYS* | CYGWIN*) here=windows-x86_64 ;;
    *) here=$(uname -s) ;;
  esac
  platform=${1:-$here}
  case $platform in aarch64) platform=linux-aarch64 ;; windows) platform=windows-x86_64 ;; esac  # the names of --target
  case $platform in
    linux-x86_64 | linux-aarch64 | windows-x86_64) ;;
    *)
      report FAIL platform "$platform is not supported" 'platforms: linux-x86_64, linux-aarch64, windows-x86_64'
      return 1
      ;;
  esac
  if [ "$here" = windows-x86_64 ]; then
    check_windows
  else
    report OK platform "building for $platform on $here, $(getconf GNU_LIBC_VERSION 2>/dev/null || echo 'a C library that is not glibc')"
    check_build_tools
    [ "$platform" = "$here" ] || check_cross_tools "$platform"
    check_driver
  fi
  check_variables
  print_command
  return $failed
}

main "$@"
