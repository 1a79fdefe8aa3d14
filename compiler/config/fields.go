package config

// Field describes a value of the configuration file, for the reference manual and
// for diagnostics. Its type and its default are derived from the code.
type Field struct {
	Path    string
	Depends string // what the default depends on; optional
	Allowed string
	Modes   string // the modes that use it: I iptables, P ipvs, N nftables, W kernelspace, U userspace
	Since   string // first release; "" for the first v1alpha1
	Until   string // the release that removed its effect
	Instead string // the replacement
	Means   string
}

// isRemoved reports whether kube-proxy no longer recognizes a field, so that it
// accepts any value.
func isRemoved(path string) bool {
	return path == "udpIdleTimeout" || path == "resourceContainer" || path == "conntrack.max"
}

// Fields returns all values, in the order of Config.
func Fields() []Field {
	return []Field{
		{Path: "apiVersion", Allowed: "`" + APIVersion + "`", Modes: "all", Means: "Required."},
		{Path: "kind", Allowed: "`" + Kind + "`", Modes: "all", Means: "Required."},
		{Path: "featureGates", Allowed: "known gates; not `false` for locked gates", Modes: "all", Means: "Feature gates to enable or disable."},

		{Path: "clientConnection.kubeconfig", Modes: "all", Means: "Kubeconfig file; empty: the service account of the pod."},
		{Path: "clientConnection.acceptContentTypes", Modes: "all", Means: "Accept header of requests to the API server."},
		{Path: "clientConnection.contentType", Modes: "all", Means: "Content type of requests to the API server."},
		{Path: "clientConnection.qps", Modes: "all", Means: "Requests to the API server per second."},
		{Path: "clientConnection.burst", Allowed: "0 or more", Modes: "all", Means: "Requests to the API server in a burst."},

		{Path: "logging.format", Allowed: "`text`, `json`", Modes: "all", Since: "1.28", Means: "Log format."},
		{Path: "logging.flushFrequency", Allowed: "more than 0; also nanoseconds as a number", Modes: "all", Since: "1.28", Means: "Longest time between two flushes of the log."},
		{Path: "logging.verbosity", Allowed: "0-2147483647", Modes: "all", Since: "1.28", Means: "Log verbosity."},
		{Path: "logging.vmodule", Allowed: "`filePattern` without `,` and `=`, and `verbosity`; only with format `text`", Modes: "all", Since: "1.28", Means: "Log verbosity by source file."},
		{Path: "logging.options.text.splitStream", Allowed: "`true` needs gate LoggingAlphaOptions", Modes: "all", Since: "1.32", Means: "Errors and info messages in two streams."},
		{Path: "logging.options.text.infoBufferSize", Allowed: "a size; not 0 needs gate LoggingAlphaOptions", Modes: "all", Since: "1.32", Means: "Buffer of the info stream, in bytes."},
		{Path: "logging.options.json.splitStream", Allowed: "`true` needs gate LoggingAlphaOptions", Modes: "all", Since: "1.28", Means: "Errors and info messages in two streams."},
		{Path: "logging.options.json.infoBufferSize", Allowed: "a size; not 0 needs gate LoggingAlphaOptions", Modes: "all", Since: "1.28", Means: "Buffer of the info stream, in bytes."},

		{Path: "hostnameOverride", Allowed: "not only blanks", Modes: "all", Means: "Name of the node; empty: the host name. It is trimmed and converted to lower case."},
		{Path: "bindAddress", Allowed: "an IP address", Modes: "all", Means: "Primary address of the node, which defines the primary family. Only mode userspace listens on it."},
		{Path: "healthzBindAddress", Depends: "`[::]:10256` if bindAddress is IPv6; an IP without port gets 10256", Allowed: "IP:port; empty only by flag", Modes: "all", Means: "Address of the health server."},
		{Path: "metricsBindAddress", Depends: "`[::1]:10249` if bindAddress is IPv6; an IP without port gets 10249", Allowed: "IP:port", Modes: "all", Means: "Address of the metrics server."},
		{Path: "bindAddressHardFail", Modes: "all", Since: "1.19", Means: "Exit if a port cannot be bound."},
		{Path: "enableProfiling", Modes: "all", Means: "Serve profiles at /debug/pprof of the metrics server."},
		{Path: "showHiddenMetricsForVersion", Allowed: "empty, or a minor release", Modes: "none", Since: "1.18", Means: "Release whose hidden metrics are shown. proxyc hides none."},

		{Path: "mode", Depends: "`iptables`; on Windows set `kernelspace`", Allowed: "`iptables`, `ipvs`, `nftables`, `kernelspace`, `userspace`", Modes: "all", Means: "Proxy mode. kube-proxy has `nftables` since 1.29 and `userspace` until 1.25."},

		{Path: "iptables.masqueradeBit", Allowed: "0-31, in every mode", Modes: "I P W U", Means: "Bit of the packet mark that requests masquerade."},
		{Path: "iptables.masqueradeAll", Modes: "I P U", Means: "Masquerade every packet to a cluster IP."},
		{Path: "iptables.localhostNodePorts", Modes: "I", Since: "1.26", Means: "Answer node ports at 127.0.0.1 (IPv4 only)."},
		{Path: "iptables.syncPeriod", Allowed: "more than 0 and at least minSyncPeriod", Modes: "I W U", Means: "Longest delay before a failed sync is retried; the first delay is one second. `/healthz` is 503 if a change waits twice as long. Comparisons with the kernel run every hour and after foreign changes."},
		{Path: "iptables.minSyncPeriod", Allowed: "0 or more, in every mode", Modes: "I W U", Means: "Shortest time between two syncs."},

		{Path: "ipvs.syncPeriod", Allowed: "more than 0 and at least minSyncPeriod", Modes: "P", Means: "As iptables.syncPeriod, but comparisons run every minute."},
		{Path: "ipvs.minSyncPeriod", Depends: "`1s` without a file", Allowed: "0 or more", Modes: "P", Means: "Shortest time between two syncs."},
		{Path: "ipvs.scheduler", Allowed: "a scheduler of the kernel; empty: `rr`", Modes: "P", Means: "How the kernel selects backends."},
		{Path: "ipvs.excludeCIDRs", Allowed: "CIDRs", Modes: "P", Means: "Addresses whose virtual servers are kept."},
		{Path: "ipvs.strictARP", Modes: "P", Since: "1.15", Means: "Answer ARP only for addresses of the receiving interface (arp_ignore 1, arp_announce 2)."},
		{Path: "ipvs.tcpTimeout", Allowed: "0 or more", Modes: "P", Since: "1.18", Means: "Time-out of idle TCP connections; 0 keeps the kernel's."},
		{Path: "ipvs.tcpFinTimeout", Allowed: "0 or more", Modes: "P", Since: "1.18", Means: "Time-out of TCP connections after a FIN; 0 keeps the kernel's."},
		{Path: "ipvs.udpTimeout", Allowed: "0 or more", Modes: "P", Since: "1.18", Means: "Time-out of UDP; 0 keeps the kernel's."},

		{Path: "nftables.masqueradeBit", Allowed: "0-31", Modes: "N", Since: "1.29", Means: "Bit of the packet mark that requests masquerade."},
		{Path: "nftables.masqueradeAll", Modes: "N", Since: "1.29", Means: "Masquerade every packet to a cluster IP."},
		{Path: "nftables.syncPeriod", Allowed: "more than 0 and at least minSyncPeriod", Modes: "N", Since: "1.29", Means: "As iptables.syncPeriod."},
		{Path: "nftables.minSyncPeriod", Allowed: "0 or more", Modes: "N", Since: "1.29", Means: "Shortest time between two syncs."},

		{Path: "winkernel.networkName", Modes: "W", Since: "1.14", Means: "HNS network of the cluster; empty: KUBE_NETWORK of the environment."},
		{Path: "winkernel.sourceVip", Allowed: "an IP address in overlay networks", Modes: "W", Since: "1.14", Means: "Source address for masquerade in overlay networks."},
		{Path: "winkernel.enableDSR", Modes: "W", Since: "1.14", Means: "Use direct server return: replies bypass the node."},
		{Path: "winkernel.rootHnsEndpointName", Depends: "`cbr0` in mode kernelspace without a file", Modes: "W", Since: "1.24", Means: "HNS endpoint of the host's network namespace in L2 bridge networks."},
		{Path: "winkernel.forwardHealthCheckVip", Modes: "W", Since: "1.24", Means: "Forward the VIP for health check ports."},

		{Path: "detectLocalMode", Depends: "`ClusterCIDR` on Linux", Allowed: "`ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`", Modes: "I P N", Since: "1.18", Means: "How pods are detected."},
		{Path: "detectLocal.bridgeInterface", Allowed: "a name of an interface in mode BridgeInterface", Modes: "I P N", Since: "1.24", Means: "Bridge of the pods."},
		{Path: "detectLocal.interfaceNamePrefix", Allowed: "1-14 characters in mode InterfaceNamePrefix", Modes: "I P N", Since: "1.24", Means: "Start of the names of the pods' interfaces."},
		{Path: "clusterCIDR", Allowed: "empty, a CIDR, or one of each family separated by a comma", Modes: "I P N U", Means: "Addresses of the cluster's pods, for detectLocalMode ClusterCIDR."},
		{Path: "nodePortAddresses", Depends: "`[primary]` in mode nftables", Allowed: "CIDRs, `primary` (the Node's addresses), `localhost`, `all`", Modes: "I P N U", Means: "Addresses at which node ports answer; empty: all."},

		{Path: "oomScoreAdj", Allowed: "-1000 to 1000", Modes: "I P N U", Means: "oom_score_adj of the process."},
		{Path: "conntrack.max", Allowed: "not together with maxPerCore", Modes: "none", Until: "1.15", Instead: "conntrack.maxPerCore and conntrack.min", Means: "Tracked connections."},
		{Path: "conntrack.maxPerCore", Allowed: "0 or more", Modes: "I P N U", Means: "Tracked connections for each core; 0 keeps the kernel's limit and ignores min."},
		{Path: "conntrack.min", Allowed: "0 or more", Modes: "I P N U", Means: "Minimum limit of tracked connections."},
		{Path: "conntrack.tcpEstablishedTimeout", Allowed: "0 or more", Modes: "I P N U", Means: "Time-out of idle TCP connections; 0 keeps the kernel's."},
		{Path: "conntrack.tcpCloseWaitTimeout", Allowed: "0 or more", Modes: "I P N U", Means: "Time-out of TCP connections in CLOSE_WAIT; 0 keeps the kernel's."},
		{Path: "conntrack.tcpBeLiberal", Modes: "I P N U", Since: "1.29", Means: "Treat TCP packets outside of the window as valid. Mode iptables then drops no packets in state INVALID; the same applies if the host sets nf_conntrack_tcp_be_liberal."},
		{Path: "conntrack.udpTimeout", Allowed: "0 or more", Modes: "I P N U", Since: "1.29", Means: "Time-out of UDP without a reply; 0 keeps the kernel's."},
		{Path: "conntrack.udpStreamTimeout", Allowed: "0 or more", Modes: "I P N U", Since: "1.29", Means: "Time-out of UDP with replies; 0 keeps the kernel's."},
		{Path: "configSyncPeriod", Allowed: "more than 0", Modes: "none", Means: "Interval at which kube-proxy repeats all objects. proxyc compares with the kernel every hour instead."},

		{Path: "portRange", Allowed: "empty, `A-B`, `A+N`, or a port", Modes: "U", Until: "1.26", Means: "Proxy ports; empty: any free port."},
		{Path: "udpIdleTimeout", Depends: "`250ms` in mode userspace", Allowed: "more than 0", Modes: "U", Until: "1.26", Means: "Timeout of idle UDP."},
		{Path: "resourceContainer", Modes: "none", Until: "1.16", Means: "Container of the process."},
		{Path: "windowsRunAsService", Modes: "W U", Since: "1.31", Means: "Run as a Windows service."},
	}
}
