# SPDX-License-Identifier: Apache-2.0
# Shared by deploy/quickstart, tests/run and the programs of tests/accuracy. Sourced from bash, from the repository's root.

say() { printf '== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# packages_of SECTION...: the names that deploy/packages-debian12.txt lists under these sections.
packages_of() {
  local section
  for section in "$@"; do
    awk -v section="[$section]" '/^#/ || /^$/ {next} /^\[/ {inside = ($0 == section); next} inside' \
      deploy/packages-debian12.txt
  done
}

# install_packages SECTION...: installs those that are missing, as root or through sudo.
install_packages() {
  local wanted missing=() package as_root=()
  mapfile -t wanted < <(packages_of "$@")
  command -v dpkg-query >/dev/null || die "not a Debian system; needed: ${wanted[*]}"
  for package in "${wanted[@]}"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "neither root nor sudo; install first: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Use-Pty=0 "${missing[@]}" >/dev/null
}

# build_programs DIR: builds the server and the command line, preset release, into DIR/bin. The CUDA device is built for
# the GPU of this machine where it has one and a toolkit; INTRAWARP_CUDA=ON builds it for every architecture instead.
build_programs() {
  local directory="$1" cuda="${INTRAWARP_CUDA:-}" options=()
  if [[ -z "$cuda" ]]; then
    local capability=""
    if command -v nvidia-smi >/dev/null; then
      capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        sort -u | tr -d . | tr '\n' ';')"
    fi
    if [[ "$capability" =~ ^([0-9]+\;)+$ ]]; then
      cuda=AUTO
      options+=("-DCMAKE_CUDA_ARCHITECTURES=${capability%;}")
    else
      cuda=OFF
    fi
  fi
  install_packages build
  say "configuring $directory (CUDA: $cuda)"
  cmake --preset release -B "$directory" -DINTRAWARP_BUILD_TESTS=OFF -DINTRAWARP_BUILD_BENCH=OFF \
    -DINTRAWARP_UNITY=ON -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$PWD/$directory/bin" "-DINTRAWARP_CUDA=$cuda" "${options[@]}" \
    --log-level=WARNING >/dev/null
  say "building the server, the command line and the bridge with $(nproc) jobs"
  cmake --build "$directory" --target intrawarpd intrawarp intrawarp-igtl --parallel "$(nproc)"
}
