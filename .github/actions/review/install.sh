#!/bin/bash
# install.sh DIRECTORY VERSION installs proxyc into a directory. VERSION is a release such as v1.2.3. Any
# other value builds the source in which this script is, with Go. RELEASES is the address of the
# releases.
set -euo pipefail
dir=$1 version=$2
releases=${RELEASES:-https://github.com/proxyc/proxyc/releases/download}
mkdir -p "$dir"
if ! [[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]]; then
	cd "$(dirname "$0")/../../.."
	exec go build -o "$dir/proxyc" ./cmd/proxyc
fi
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) arch=$(uname -m) ;;
esac
file=proxyc-$(uname -s | tr A-Z a-z)-$arch
cd "$dir"
for name in "$file" SHA256SUMS; do
	curl -fsSL --retry 3 -o "$name" "$releases/$version/$name"
done
grep " $file\$" SHA256SUMS | sha256sum -c - >&2
mv "$file" proxyc
rm SHA256SUMS
chmod +x proxyc
