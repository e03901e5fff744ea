#!/usr/bin/env bash
# Installs what headless rendering and the browser tests need, where it is missing and it may.
# Never fails: without it everything but frames and those tests still works.
set -euo pipefail

packages=(libegl1 libgl1-mesa-dri libopengl0 libosmesa6 xvfb chromium)

is_installed() {
    [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup_system: not a Debian or Ubuntu system. For frames, install EGL, OSMesa, Mesa's" \
        "DRI drivers and Xvfb with your package manager." >&2
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $EUID -eq 0 ]]; then
    as_root=()
elif command -v sudo >/dev/null && sudo --non-interactive true 2>/dev/null; then
    as_root=(sudo --non-interactive)
else
    echo "setup_system: warning: rendering needs ${missing[*]}. Ask an administrator to run:" >&2
    echo "    sudo apt-get update && sudo apt-get install --yes ${missing[*]}" >&2
    exit 0
fi

echo "setup_system: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes --no-install-recommends "${missing[@]}")
if ! { "${as_root[@]}" "${install[@]}" || { "${as_root[@]}" apt-get update && "${as_root[@]}" "${install[@]}"; }; }; then
    echo "setup_system: warning: could not install ${missing[*]}; frames may be unavailable." >&2
fi
