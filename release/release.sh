# The verb `release` of ./build.sh, which sources this file. docs/internals/releasing.md describes the process.
#
#   ./build.sh release                     build the tag vX.Y.Z of HEAD; the tree must be clean
#   ./build.sh release X.Y.Z-NAME          build the current tree under a version with a suffix
#     --platform linux-x86_64|...          only this platform (may be repeated)
#     --smoke                              also test every package in an empty root
#
# Output in build/release: the packages, SHA256SUMS, and with MLXCEL_RELEASE_KEY a signature of each.

# One line per platform: name, archive suffix, wheel tags, and the newest glibc that its binary may need ("-": none).
release_platforms='
linux-x86_64    tar.gz  manylinux_2_28_x86_64,manylinux_2_27_x86_64,manylinux2014_x86_64,manylinux_2_17_x86_64      2.28
linux-aarch64   tar.gz  manylinux_2_28_aarch64,manylinux_2_27_aarch64,manylinux2014_aarch64,manylinux_2_17_aarch64  2.28
windows-x86_64  zip     win_amd64                                                                                   -
'
max_runtime_bytes=$((6 << 20))  # size limit of a runtime-only package
release=$build/release

# ---- version ---------------------------------------------------------------------------------------------------------

# Sets |version| and |epoch|. A version without a suffix is a release and needs its tag and a clean tree.
choose_version() {  # [VERSION]
  local tag
  need git 'install git, which reads the tag of the release, for example: apt-get install git'
  tag=$(git describe --exact-match --tags --match 'v[0-9]*' HEAD 2>/dev/null || true)
  version=${1:-${tag#v}}
  [ -n "$version" ] || die 'HEAD has no tag vX.Y.Z' 'create one (git tag -s v0.2.0), or build a trial: ./build.sh release 0.2.0-trial'
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "'$version' is not a version" 'for example 0.2.0, or 0.2.0-trial'
  if [ "$version" = "${version%%-*}" ]; then
    [ "v$version" = "$tag" ] || die "HEAD is not v$version but ${tag:-untagged}" "git checkout v$version"
    [ -z "$(git status --porcelain)" ] || die 'the tree is not clean: a release must match its tag' 'git stash, or commit and tag again'
  else
    echo "building $version, a trial without a tag" >&2
  fi
  epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct HEAD)}
}

# ---- building --------------------------------------------------------------------------------------------------------

# Builds both binaries of a platform in its own build folder, without paths of this machine: they search relative to
# themselves.
build_release_tree() {  # PLATFORM
  local targets=(mlxcel mlxcel_runtime_only mlxcel_shared) iree_compile='' options=() iree_options=() test_options=() machine=${1#linux-}
  machine=${machine%-x86_64}
  [ "$1" != "linux-$(uname -m)" ] || targets+=(make_images)
  iree
  "options_for_$machine"
  iree_for "$machine" "${options[@]}" "${iree_options[@]}"
  step "building mlxcel $version for $1" compile_tree "$release/tree/$1" "${options[@]}" -DMLXCEL_VERSION="$version" -DMLXCEL_NVRTC= \
    -DCMAKE_C_FLAGS="-ffile-prefix-map=$root=."
}

# Downloads the pinned wheels of a platform, all for Python 3.11: the files used are the same for every Python version.
fetch_wheels() {  # FOLDER TAGS
  local name tags=() tag pin=$deps/release.pin
  rm -rf "$1"
  mkdir -p "$1"
  for tag in ${2//,/ }; do tags+=(--platform "$tag"); done
  for name in iree-base-compiler nvidia-cuda-nvrtc; do
    python_pin "$name" >"$pin"
    python3 -m pip download --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --python-version 3.11 --implementation cp \
      "${tags[@]}" --dest "$1" -r "$pin"
  done
}

# Compiles the kernels that all models share, with the NVRTC of the packages: without nvFatbin, whose PTX would give the
# images other keys. NVRTC for another machine has other keys too, and cannot run here, so only packages for this
# machine get them.
make_release_images() {  # PLATFORM
  local nvrtc=$release/nvrtc
  rm -rf "$nvrtc" "$release/images"
  mkdir -p "$nvrtc"
  cp "$deps"/nvrtc/libnvrtc*.so.* "$nvrtc/"
  make_images "$release/tree/$1/tests/make_images" "$nvrtc" "$release/images"
}

# ---- packages --------------------------------------------------------------------------------------------------------

# Copies the compiler to ../libexec/iree and ../lib, where mlxcel searches for it. Omits nvFatbin, because its license
# forbids redistribution.
add_compiler() {  # PLATFORM WHEELS STAGE
  local unpacked=$release/unpacked/$1 wheel
  rm -rf "$unpacked"
  mkdir -p "$unpacked" "$3/libexec/iree" "$3/lib"
  for wheel in "$2"/*.whl; do python3 -m zipfile -e "$wheel" "$unpacked"; done
  local tools=$unpacked/iree/compiler/_mlir_libs
  case $1 in
    linux-*)
      cp "$tools/iree-compile" "$tools/iree-lld" "$tools/libIREECompiler.so" "$3/libexec/iree/"
      cp "$unpacked"/nvidia/cu13/lib/libnvrtc.so.13 "$unpacked"/nvidia/cu13/lib/libnvrtc-builtins.so.13.* "$3/lib/"
      ;;
    windows-*)
      cp "$tools/iree-compile.exe" "$tools/iree-lld.exe" "$tools/IREECompiler.dll" "$3/libexec/iree/"
      cp "$unpacked"/nvidia/cu13/bin/x86_64/nvrtc64_*_0.dll "$unpacked"/nvidia/cu13/bin/x86_64/nvrtc-builtins64_*.dll "$3/lib/"
      ;;
  esac
  chmod 755 "$3"/libexec/iree/*
  rm -rf "$unpacked"
}

# Adds license, README, notices, SBOM, manual pages and completions. The mlxcel built for this machine writes the last
# two.
add_documents() {  # NAME PLATFORM FORM STAGE BINARY WHEELS
  local here=$release/tree/linux-$(uname -m)/bin/mlxcel shell
  cp LICENSE "$4/"
  cp release/README.package.md "$4/README.md"
  release/notices.sh "$2" "$3" "$deps" >"$4/THIRD_PARTY_NOTICES.txt"
  release/sbom.sh "$1" "$2" "$3" "$version" "$epoch" "$5" "$6" >"$4/sbom.spdx.json"
  mkdir -p "$4/share/man/man1" "$4/share/bash-completion/completions" "$4/share/zsh/site-functions" "$4/share/fish/vendor_completions.d"
  "$here" man --no-config -o "$4/share/man/man1"
  "$here" completion --no-config bash >"$4/share/bash-completion/completions/mlxcel"
  "$here" completion --no-config zsh >"$4/share/zsh/site-functions/_mlxcel"
  "$here" completion --no-config fish >"$4/share/fish/vendor_completions.d/mlxcel.fish"
}

add_images() {  # PLATFORM STAGE
  [ "$1" = "linux-$(uname -m)" ] || return 0
  mkdir -p "$2/share/mlxcel"
  cp -r "$release/images" "$2/share/mlxcel/images"
}

stage_package() {  # NAME PLATFORM FORM WHEELS
  local stage=$release/stage/$1 tree=$release/tree/$2 folder=bin suffix='' link
  [ "$3" = full ] || folder=runtime-only
  case $2 in windows-*) suffix=.exe ;; esac
  rm -rf "$stage"
  mkdir -p "$stage/bin"
  cp "$tree/$folder/mlxcel$suffix" "$stage/bin/"
  if [ -z "$suffix" ]; then
    for link in run bench; do ln -s mlxcel "$stage/bin/mlxcel-$link"; done
    if [ "$3" = full ]; then ln -s mlxcel "$stage/bin/mlxcel-compile"; fi
  fi
  if [ "$3" = full ]; then
    add_compiler "$2" "$4" "$stage"
    add_images "$2" "$stage"
  fi
  add_documents "$1" "$2" "$3" "$stage" "$stage/bin/mlxcel$suffix" "$4"
}

glibc_of() { readelf -V "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1; }

check_glibc() {  # FILE LIMIT
  local needed
  [ "$2" != - ] || return 0
  needed=$(glibc_of "$1")
  version_at_least "$2" "${needed#GLIBC_}" || die "$1 needs $needed, newer than glibc $2 that the package supports" \
    'find the symbol: objdump -T FILE | grep GLIBC'
  echo "$1 needs $needed (allowed: $2)" >&2
}

check_size() {  # FILE FORM
  local bytes
  bytes=$(stat -c %s "$1")
  [ "$2" = full ] || [ "$bytes" -le $max_runtime_bytes ] || die "$1 has $bytes bytes; the limit for a runtime-only package is $max_runtime_bytes"
}

package_platform() {  # PLATFORM SUFFIX TAGS GLIBC
  local form name wheels=$release/wheels/$1
  once "$wheels" "$(python_pin iree-base-compiler) $(python_pin nvidia-cuda-nvrtc) $(declare -f fetch_wheels) $3" "fetching the compiler for $1" \
    fetch_wheels "$wheels" "$3"
  for form in runtime full; do
    name=mlxcel-$1-cuda13
    [ "$form" = full ] || name+=-runtime
    step "staging $name" stage_package "$name" "$1" "$form" "$wheels"
    if [ "$2" = tar.gz ]; then check_glibc "$release/stage/$name/bin/mlxcel" "$4"; fi
    step "packing $name" release/pack.sh "$release/stage/$name" "$release/$name.$2" "$epoch"
    check_size "$release/$name.$2" "$form"
    packages+=("$name.$2")
  done
  wheel_package "$1" "$4"
  case $1 in
    linux-*) for form in -runtime ''; do add_package deb "$1" "mlxcel-$1-cuda13$form"; add_package image "$1" "mlxcel-$1-cuda13$form"; done ;;
  esac
}

# The wheel has the program with the compiler, but not iree-compile and NVRTC: pip installs those (mlxcel[compiler]).
stage_wheel() {  # PLATFORM STAGE
  local suffix=''
  case $1 in windows-*) suffix=.exe ;; esac
  rm -rf "$2"
  mkdir -p "$2/bin"
  cp "$release/tree/$1/bin/mlxcel$suffix" "$2/bin/"
  add_images "$1" "$2"
  add_documents mlxcel-wheel "$1" runtime "$2" "$2/bin/mlxcel$suffix" ''
}

wheel_package() {  # PLATFORM GLIBC
  local library=$release/tree/$1/lib/libmlxcel.so.$(cut -d. -f1-2 <<<"$version")
  case $1 in windows-*) library=$release/tree/$1/bin/libmlxcel.dll ;; *) check_glibc "$library" "$2" ;; esac
  step "staging the wheel for $1" stage_wheel "$1" "$release/stage/wheel-$1"
  add_package wheel "$1" "wheel-$1" --library "$library" --headers "$release/tree/$1/generated/include/mlxcel"
}

# Makes a package with release/packages.py. One that this machine cannot make is reported and left out.
add_package() {  # KIND PLATFORM STAGE OPTIONS...
  local kind=$1 platform=$2 stage=$release/stage/$3 file status=0
  shift 3
  file=$(python3 release/packages.py "$kind" --platform "$platform" --version "$version" --epoch "$epoch" --out "$release" --stage "$stage" "$@") || status=$?
  case $status in
    0) packages+=("$(basename "$file")") ;;
    77) echo "skipped: the $kind for $platform" >&2 ;;
    *) exit 1 ;;
  esac
}

# ---- digests and signatures ------------------------------------------------------------------------------------------

# Signs with the released mlxcel. The trusted comment holds the version, so that an old package cannot pass for a new
# one.
sign_packages() {
  local here=$release/tree/linux-$(uname -m)/bin/mlxcel key=${MLXCEL_RELEASE_KEY:-} public=${MLXCEL_RELEASE_PUBKEY:-}
  if [ -z "$key" ]; then
    echo 'the packages are unsigned: MLXCEL_RELEASE_KEY is not set' >&2
    return
  fi
  "$here" sign --help >/dev/null 2>&1 || die 'this mlxcel has no verb `sign`' 'unset MLXCEL_RELEASE_KEY to leave the packages unsigned'
  if [ -z "$public" ] && [ -f "${key%.key}.pub" ]; then public=${key%.key}.pub; fi
  key=$(realpath "$key")
  public=${public:+$(realpath "$public")}
  (cd "$release" && "$here" sign --no-config -s "$key" -t "mlxcel $version" SHA256SUMS "${packages[@]}")
  [ -z "$public" ] || (cd "$release" && "$here" verify --no-config -p "$public" SHA256SUMS "${packages[@]}")
}

run_release() {
  local smoke=0 wanted=() given='' platform suffix tags glibc package packages=()
  while [ $# -gt 0 ]; do
    case $1 in
      --smoke) smoke=1 ;;
      --platform)
        grep -q "^${2:-none} " <<<"$release_platforms" || die "--platform: expected one of: $(awk 'NF {printf "%s ", $1}' <<<"$release_platforms")"
        wanted+=("$2")
        shift
        ;;
      -*) die "release: unknown option $1" ;;
      *) given=$1 ;;
    esac
    shift
  done
  choose_version "$given"
  need readelf 'install binutils, for example: apt-get install binutils'
  lock_build
  fetch
  pip_fetch lit
  mkdir -p "$release"
  rm -f "$release"/mlxcel[-_]* "$release"/SHA256SUMS*
  [ ${#wanted[@]} -gt 0 ] || read -r -a wanted <<<"$(awk 'NF {printf "%s ", $1}' <<<"$release_platforms")"
  build_release_tree "linux-$(uname -m)"  # always: this mlxcel writes the manual pages and signs
  make_release_images "linux-$(uname -m)"
  for platform in "${wanted[@]}"; do
    read -r platform suffix tags glibc <<<"$(grep "^$platform " <<<"$release_platforms")"
    [ "$platform" = "linux-$(uname -m)" ] || build_release_tree "$platform"
    package_platform "$platform" "$suffix" "$tags" "$glibc"
  done
  (cd "$release" && sha256sum "${packages[@]}" >SHA256SUMS)
  printf '%s\n' "$version" >"$release/VERSION"
  sign_packages
  unlock_build
  (cd "$release" && for package in "${packages[@]}"; do printf '%12d bytes %8.2f MiB  %s\n' "$(stat -c %s "$package")" \
    "$(awk -v n="$(stat -c %s "$package")" 'BEGIN {print n / 1048576}')" "$package"; done)
  if [ $smoke -eq 1 ]; then
    fetch_model
    MLXCEL_CACHE=$release/cache MLXCEL_IREE_COMPILE=$iree_compile MLXCEL_NVRTC=$deps/nvrtc \
      python3 tests/release/smoke_release.py "$release/tree/linux-$(uname -m)/bin/mlxcel" "$model" "$release" $(printf '%s\n' "${packages[@]}" | grep -E '\.(tar\.gz|zip)$')
    MLXCEL_IREE_COMPILE=$iree_compile python3 tests/release/packages_test.py "$release/tree/linux-$(uname -m)" "$cmake" "$cc" "$deps" --made "$release"
  fi
}
