#!/bin/bash
# Builds the images that the tests use from Debian packages and programs of build.sh, without a registry. Names and tags
# come from test/utils/image/manifest.go of the Kubernetes release.
. "$(dirname "$0")/env.sh"
K8S=$(cd "$HERE/.." && go list -m -f "{{.Dir}}" k8s.io/kubernetes)
mkdir -p "$IMG"
# The images are built again if the release or this script changes.
key=$(cat "$BIN/version" "$0" | sha256sum)
[ "$(cat "$IMG/key" 2>/dev/null)" != "$key" ] || exit 0
rm -rf "$IMG"/*.tar "$IMG"/root-* "$IMG/key"

# debs DIRECTORY PACKAGE... unpacks packages and their dependencies. apt gets an empty list of installed packages.
debs() {
	local to=$1; shift
	local cache=$IMG/debs
	mkdir -p "$cache/partial" "$to"; : >"$IMG/installed"
	local opt=(-o Dir::State::status="$IMG/installed" -o Dir::Cache::archives="$cache" -o APT::Sandbox::User=root -o Debug::NoLocking=1 --no-install-recommends -y -q)
	apt-get "${opt[@]}" --download-only install "$@" >"$IMG/apt.log" 2>&1 || die "apt-get, see $IMG/apt.log"
	# The cache can contain other packages too. A simulation names those needed.
	apt-get "${opt[@]}" -s install "$@" | sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1 \2/p' | while read -r name version; do
		dpkg-deb -x "$cache/${name}_${version//:/%3a}_"*.deb "$to"
	done
}

# image NAME DIRECTORY ENTRYPOINT CMD writes an archive for ctr image import, with one layer. The last two are JSON.
image() {
	local name=$1 root=$2 file=$IMG/$(basename "${1%%:*}").tar tmp
	tmp=$(mktemp -d "$IMG/tmp.XXXX")
	tar -C "$root" --owner=0 --group=0 --numeric-owner --sort=name --mtime=@0 -cf "$tmp/layer.tar" .
	local sum; sum=$(sha256sum "$tmp/layer.tar" | cut -d' ' -f1)
	cat >"$tmp/config.json" <<-J
	{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Entrypoint":$3,"Cmd":$4},"rootfs":{"type":"layers","diff_ids":["sha256:$sum"]},"history":[]}
	J
	echo "[{\"Config\":\"config.json\",\"RepoTags\":[\"$name\"],\"Layers\":[\"layer.tar\"]}]" >"$tmp/manifest.json"
	tar -C "$tmp" -cf "$file" manifest.json config.json layer.tar
	rm -r "$tmp"
	say "image $name: $(du -m "$file" | cut -f1) MiB"
}
# registry ARCHIVE NAME TAG DIRECTORY stores an image as agnhost's fake registry expects it.
registry() {
	local archive=$1 store=$4/$2 tmp layer config
	tmp=$(mktemp -d "$IMG/tmp.XXXX")
	tar -C "$tmp" -xf "$archive"
	# put KIND FILE prints the digest.
	put() {
		local sum; sum=$(sha256sum "$2" | cut -d' ' -f1)
		mkdir -p "$store/$1/sha256/${sum:0:2}/$sum"
		cp "$2" "$store/$1/sha256/${sum:0:2}/$sum/data"
		echo "sha256:$sum"
	}
	layer=$(put blobs "$tmp/layer.tar") config=$(put blobs "$tmp/config.json")
	local type=application/vnd.docker.distribution.manifest.v2+json prefix=application/vnd.docker
	cat >"$tmp/manifest" <<-J
	{"schemaVersion": 2, "mediaType": "$type",
	 "config": {"mediaType": "$prefix.container.image.v1+json", "size": $(stat -c %s "$tmp/config.json"), "digest": "$config"},
	 "layers": [{"mediaType": "$prefix.image.rootfs.diff.tar", "size": $(stat -c %s "$tmp/layer.tar"), "digest": "$layer"}]}
	J
	put manifests "$tmp/manifest" >"$store/manifests-digest"
	mv "$store/manifests-digest" "$store/manifests/$3"
	rm -r "$tmp"
}
# tag CONSTANT prints the tag of an image, by its constant in the release's manifest.
tag() { sed -n "s|^[^/]*configs\[$1\] *= Config{[^,]*, \"[^\"]*\", \"\(.*\)\"}.*|\1|p" "$K8S/test/utils/image/manifest.go"; }
E2E=registry.k8s.io/e2e-test-images

# pause holds the namespaces of a pod.
r=$IMG/root-pause; rm -rf "$r"; mkdir -p "$r"
gcc -Os -static -DVERSION=rig -o "$r/pause" "$K8S/build/pause/linux/pause.c"
image "registry.k8s.io/pause:$(tag Pause)" "$r" '["/pause"]' null

# busybox is Debian's static one, with a link for each applet.
r=$IMG/root-busybox; rm -rf "$r"; mkdir -p "$r/bin" "$r/tmp" "$r/etc"
debs "$IMG/busybox-deb" busybox-static
cp "$IMG/busybox-deb/bin/busybox" "$r/bin/busybox"
"$r/bin/busybox" --list | while read -r a; do [ "$a" = busybox ] || ln -s busybox "$r/bin/$a"; done
image "$E2E/busybox:$(tag BusyBox)" "$r" null '["sh"]'

# agnhost has the tools that tests run in it. Upstream has them from Alpine and busybox. wget is GNU wget, since Debian's
# static busybox crashes there. The program needs libc, since it is built with cgo.
r=$IMG/root-agnhost; rm -rf "$r"; mkdir -p "$r"
debs "$r" dash bash libc-bin curl wget iproute2 netcat-openbsd bind9-dnsutils iperf
rm -rf "$r"/usr/share/{doc,man,locale,info,bash-completion,perl5} "$r"/var/lib/dpkg "$r"/usr/bin/perl* "$r"/usr/lib/*/perl*
mkdir -p "$r"/{bin,tmp,uploads,root,proc,sys,dev,run,usr/local/bin}
# The packages are unpacked but not configured, so there are no alternatives such as nc.
ln -sf nc.openbsd "$r/bin/nc"
cp "$IMG/busybox-deb/bin/busybox" "$r/bin/busybox"
"$r/bin/busybox" --list | while read -r a; do
	[ -e "$r/bin/$a" ] || [ -e "$r/sbin/$a" ] || [ -e "$r/usr/bin/$a" ] || [ -e "$r/usr/sbin/$a" ] || ln -sf busybox "$r/bin/$a"
done
ln -sf dash "$r/bin/sh"      # not busybox: Debian's prefers its applets to programs in PATH
cp "$K8S"/test/images/agnhost/porter/localhost.{crt,key} "$r/"
chmod u+w "$r"/localhost.*
cp "$BIN/agnhost" "$r/agnhost"; ln -s agnhost "$r/agnhost-2"
registry "$IMG/pause.tar" pause testing "$r/var/registry"
cp "$BIN/coredns" "$r/coredns"                                        # dns.go starts it as its own DNS server
echo 'root:x:0:0:root:/root:/bin/sh
user-defined-in-image:x:1000:1000::/:/bin/sh' >"$r/etc/passwd"
echo 'root:x:0:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image' >"$r/etc/group"
echo 'hosts: files dns' >"$r/etc/nsswitch.conf"
/sbin/ldconfig -r "$r"
image "$E2E/agnhost:$(tag Agnhost)" "$r" '["/agnhost"]' '["pause"]'

# glibc-dns-testing, for dns.go, is a Debian with dig and a shell upstream.
image "$E2E/glibc-dns-testing:$(tag GlibcDnsTesting)" "$r" null '["sleep", "3600"]'

# regression-issue-74839, for conntrack.go.
r=$IMG/root-74839; rm -rf "$r"; mkdir -p "$r"
cp "$BIN/regression-issue-74839" "$r/"
image "$E2E/regression-issue-74839:$(tag RegressionIssue74839)" "$r" '["/regression-issue-74839"]' null

# nginx, for endpoints.go and endpointslice.go: Debian's, with its default site.
r=$IMG/root-nginx; rm -rf "$r"; mkdir -p "$r"
debs "$r" nginx-light dash
rm -rf "$r"/usr/share/{doc,man,locale,info,perl*} "$r"/var/lib/dpkg
mkdir -p "$r"/{tmp,run,var/log/nginx,var/lib/nginx,var/www/html,etc/nginx/sites-enabled}
ln -sf dash "$r/bin/sh"; ln -sfn ../run "$r/var/run"
ln -sf ../sites-available/default "$r/etc/nginx/sites-enabled/default"
echo '<title>Welcome to nginx!</title>' >"$r/var/www/html/index.html"
echo 'root:x:0:0:root:/root:/bin/sh
www-data:x:33:33::/var/www:/bin/sh' >"$r/etc/passwd"
echo 'root:x:0:
www-data:x:33:' >"$r/etc/group"
/sbin/ldconfig -r "$r"
image "$E2E/nginx:$(tag Nginx)" "$r" null '["/usr/sbin/nginx", "-g", "daemon off;"]'

# distroless-iptables is upstream's image for kube-proxy. The pods of up.sh mount proxies into it, and kube_proxy.go reads the
# host's /proc in it.
r=$IMG/root-proxy; rm -rf "$r"; mkdir -p "$r"
debs "$r" dash coreutils grep sed mawk libc-bin iptables nftables ipset conntrack kmod iproute2
rm -rf "$r"/usr/share/{doc,man,locale,info,perl*} "$r"/var/lib/dpkg
mkdir -p "$r"/{bin,tmp,run,proc,sys,var/lib}
ln -sf dash "$r/bin/sh"
/sbin/ldconfig -r "$r"
image "registry.k8s.io/build-image/distroless-iptables:$(tag DistrolessIptables)" "$r" null '["sleep", "600"]'
rm -rf "$IMG"/root-*
echo "$key" >"$IMG/key"
