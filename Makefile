# Targets for people and CI. All tests except those of check need Linux and root: they
# load rules into network namespaces that they create.

GO       ?= go
FUZZTIME ?= 20s
SOAK     ?= 10m
SEED     ?= 0
PLANE    ?= nftables
VM_PACKAGES = qemu-system-x86 kmod
WINDOWS_PACKAGES = wine64 gcc-mingw-w64-x86-64-win32
PACKAGES  = nftables iptables ipset ipvsadm conntrack iproute2 procps strace zsh fish
PAGE_PACKAGES = chromium
CLUSTER_PACKAGES = gcc libc6-dev curl jq openssh-client openssl
SUDO      = $(shell test "$$(id -u)" = 0 || echo sudo)

.PHONY: build setup setup-vm setup-windows test-windows check test test-all e2e-tools e2e cluster cluster-down e2e-kubernetes test-kubernetes soak soak-userspace vm test-vm conformance golden verify lint size fuzz bench measure release image demo clean

build:
	$(GO) build -o bin/proxyc ./cmd/proxyc

# install installs the Debian packages in $(1) that are missing.
install = @missing=$$(for p in $(1); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q ' installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
		$(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; \
	fi

# setup installs the Debian packages whose tools the tests call, and the Go modules.
setup:
	$(call install,$(PACKAGES) $(PAGE_PACKAGES))
	$(GO) mod download
	cd e2e && $(GO) mod download
	cd e2e/types && $(GO) mod download
	cd e2e/userspace && $(GO) mod download
	cd e2e/page && $(GO) mod download
	cd e2e/release && $(GO) mod download
	cd e2e/deploy && $(GO) mod download

# check runs as any user, and needs only Go. It skips tests that need root, the real
# tools or other modules.
check:
	$(GO) build ./...
	$(GO) vet ./...
	$(GO) test ./...

# TESTS runs tests and says what ran. They mostly wait for replies, so more of them run in parallel than
# there are processors. ALL=1 adds the cases of tier 3, and SLOWEST=20 lists what takes long.
TESTS = PROXYC_REQUIRE=all $(GO) run ./.ci/test -slowest $(or $(SLOWEST),0)
FLAGS_OF_TESTS = -- -p 2 $(if $(ALL),-tags all -timeout 5h,-timeout 30m)

# test runs tier 1: units, scripts, goldens, lint tables, real packets in each mode, the page in a browser.
# It does not vet, which is an eighth of what it would compile: check and verify do.
test:
	$(GO) build ./...
	@.ci/untouched $(TESTS) -name 'make test' -rest 'make e2e (API server, kube-proxy, release, deploy), make test-all (every case)' \
		-dirs .,e2e/page $(FLAGS_OF_TESTS) -vet=off -parallel 8

# test-all runs every case of all tests except the soak.
test-all:
	$(MAKE) test e2e ALL=1
	$(MAKE) e2e-kubernetes
	$(MAKE) e2e-kubernetes FOCUS='\[sig-network\].*\[Disruptive\]' SKIP= PROCS=1
	$(MAKE) test-windows test-vm ALL=1

# e2e-tools builds the real etcd, kube-apiserver and kube-proxy, and mode userspace of kube-proxy 1.25.
# The first build takes minutes; later ones use Go's cache.
e2e-tools:
	cd e2e && for tool in $$($(GO) list tool | grep -E 'etcd|kube-(apiserver|proxy)$$'); do $(GO) tool -n $$tool || exit 1; done
	cd e2e/userspace && $(GO) build -o /dev/null .

# e2e runs tier 2: proxyc with them and with real packets, the release, and what deploys it.
e2e: e2e-tools
	@.ci/untouched $(TESTS) -name 'make e2e' -rest 'make test (units, goldens, real packets), make test-kubernetes, make test-all (every case)' \
		-dirs e2e,e2e/types,e2e/deploy,e2e/release $(FLAGS_OF_TESTS) -parallel 4

# cluster starts a cluster with real kubelets on this machine, and prints how to look around. It takes PROXY, MODE, IPTABLES,
# DUAL and NODES (e2e/kubernetes/env.sh). The first build takes half an hour.
cluster: cluster-tools
	e2e/kubernetes/up.sh

cluster-tools:
	$(call install,$(PACKAGES) $(CLUSTER_PACKAGES))
	e2e/kubernetes/build.sh
	e2e/kubernetes/images.sh

cluster-down:
	e2e/kubernetes/down.sh

# e2e-kubernetes runs Kubernetes' own tests in the running cluster, or in one of its own. FOCUS and SKIP select specs.
# test-kubernetes runs those of ci.txt.
e2e-kubernetes: cluster-tools
	e2e/kubernetes/run.sh

test-kubernetes: cluster-tools
	OUT=$${TMPDIR:-/tmp}/test-kubernetes FOCUS="$$(paste -sd'|' e2e/kubernetes/ci.txt)" SKIP= e2e/kubernetes/run.sh

# setup-windows installs wine, and a compiler for the libraries that wine lacks.
setup-windows:
	$(call install,$(WINDOWS_PACKAGES))

# test-windows runs proxyc.exe and the real kube-proxy.exe under wine, with a simulated Host Networking Service and a real
# API server. It selects cases and versions of Windows; ALL=1 runs all of them, which takes hours.
test-windows: setup-windows e2e-tools
	cd e2e && PROXYC_REQUIRE=all $(GO) test $(if $(ALL),-timeout 10h -v,-timeout 30m) ./windows $(if $(ALL),-all)

# soak changes 1,000 Services at random for SOAK, with continuous connections. Then it plays random histories with
# faults for SOAK; SEED repeats their choices.
soak: e2e-tools
	cd e2e && PROXYC_REQUIRE=all $(GO) test . -count=1 -timeout 60m -v -run 'TestSoak$$' -soak $(SOAK) -soak-plane $(PLANE)
	cd e2e && PROXYC_REQUIRE=all $(GO) test ./history -count=1 -timeout 60m -v -run 'TestHistory$$/^$(PLANE)$$' -lasts $(SOAK) -seed $(SEED)

# setup-vm installs the tools of a virtual machine. Its kernel is downloaded, not installed.
setup-vm:
	$(call install,$(PACKAGES) $(VM_PACKAGES))

# vm runs RUN as root on Debian's stock kernel, in a virtual machine that sees this machine's files. Without RUN it opens a shell.
vm: setup-vm
	cd e2e && CGO_ENABLED=0 $(GO) build -o ../bin/vm ./vm
	bin/vm $(VM) $(if $(RUN),-- sh -c '$(RUN)',-shell)

# test-vm runs tests in the virtual machine: the usual suites, those that match ONLY, or with ALL=1 all of them.
test-vm: setup-vm
	cd e2e && CGO_ENABLED=0 $(GO) build -o ../bin/vm ./vm
	bin/vm $(VM) $(if $(ALL),-all) $(if $(ONLY),-only '$(ONLY)')

# soak-userspace opens and closes connections through the proxy of mode userspace for SOAK.
soak-userspace:
	$(GO) test ./apply/userspace -count=1 -timeout 60m -v -run 'TestSoak$$' -soak $(SOAK)

# conformance plays the recorded cases of kube-proxy with proxyc, in both families and all modes that this kernel supports.
conformance:
	$(GO) test -tags all ./apply/applytest -count=1 -timeout 2h -v -run Conformance

# golden rewrites the results that tests expect, if the real tools accept them.
golden:
	$(GO) test ./cmd/proxyc -run 'TestGolden|TestScript|TestReadme|TestReview|TestCapabilityTable|TestLint' -update
	$(GO) test ./compiler/config ./docs -update

verify:
	GO=$(GO) .ci/verify

lint:
	$(GO) vet ./...
	$(GO) tool -modfile=.ci/tools.mod staticcheck ./...

# size prints measures of the code's structure: lines, references, types, functions.
size:
	@$(GO) run ./.ci/size

# fuzz gives every fuzz test FUZZTIME.
fuzz:
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg || exit 1; \
		done; \
	done

# bench records the allocations for a fixed cluster in testdata/bench/counts.json, which a
# test compares. It also prints times, which no test compares.
bench:
	$(GO) test ./cmd/proxyc -count=1 -v -run 'TestCounts$$' -update
	$(GO) test -p 1 -run '^$$' -bench . -benchmem ./compiler/... ./render/... ./apply/... ./cmd/...

# measure runs SCENARIO with the flags FLAGS. Without SCENARIO it lists the scenarios. Paths are relative to e2e.
measure:
	cd e2e && $(GO) run ./measure $(SCENARIO) $(FLAGS)

# release writes static programs for each platform, their contents and their
# checksums into dist. image also writes images of them, as OCI layouts.
release:
	cd e2e/release && $(GO) run .

image:
	cd e2e/release && $(GO) run . -images

demo:
	@$(GO) run ./cmd/proxyc demo

clean:
	rm -rf bin dist
