# SPDX-License-Identifier: Apache-2.0
# Shared by deploy/quickstart, tests/run and tests/accuracy/run. Sourced from bash, from the repository's root.

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
