package config

import (
	"strconv"
	"strings"
	"time"
)

// Flags is kube-proxy's command line, to be embedded in a kong grammar. It
// contains every flag of 1.37 and of the manuals since 1.14, and proxyc's own
// --mode. nil means not set. If two flags set the same field, the later in this
// order wins.
//
// Additional struct tags:
//
//   - config: the path that the flag sets.
//   - sets: the effect in words, if it is not one path.
//   - keep: the flag applies together with --config, which overrides all other
//     flags.
//   - until: the release that removed the flag's effect.
//   - instead: the replacement.
//   - address: an address, whose default remains if the flag is empty (CFG-13).
//   - csv: a list whose values may be quoted between the commas.
//   - daemon: the flag affects no rule.
//   - like: the path with the flag's default, if the flag sets several.
type Flags struct {
	Config        *string `name:"config" short:"c" placeholder:"FILE" help:"Configuration file: KubeProxyConfiguration, or a ConfigMap with one. The key of the ConfigMap is config.conf or config. It may be among other documents or in a List." sets:"everything" keep:""`
	WriteConfigTo *string `name:"write-config-to" placeholder:"FILE" help:"Write the effective configuration to a file and exit." sets:"-" keep:""`
	Cleanup       bool    `name:"cleanup" help:"Remove the rules of all modes and exit." sets:"-" keep:"" daemon:""`
	InitOnly      bool    `name:"init-only" help:"Do the steps that require full privileges and exit." sets:"-" keep:"" daemon:""`

	HostnameOverride *string `name:"hostname-override" placeholder:"NODE" help:"Name of the node." sets:"hostnameOverride" keep:"" like:"hostnameOverride"`

	FeatureGates []string `name:"feature-gates" placeholder:"NAME=BOOL" help:"Feature gates to turn on or off." sets:"featureGates"`

	Kubeconfig  *string  `name:"kubeconfig" placeholder:"FILE" help:"Kubeconfig file." config:"clientConnection.kubeconfig" daemon:""`
	Master      *string  `name:"master" placeholder:"URL" help:"Address of the API server; overrides the kubeconfig file." sets:"-" keep:"" daemon:""`
	ContentType *string  `name:"kube-api-content-type" placeholder:"TYPE" help:"Content type of requests to the API server." config:"clientConnection.contentType" daemon:""`
	QPS         *float32 `name:"kube-api-qps" placeholder:"N" help:"Requests to the API server per second." config:"clientConnection.qps" daemon:""`
	Burst       *int32   `name:"kube-api-burst" placeholder:"N" help:"Requests to the API server in a burst." config:"clientConnection.burst" daemon:""`

	BindAddress         *string `name:"bind-address" placeholder:"IP" help:"Primary IP address of the node; it is not listened on." config:"bindAddress" address:""`
	HealthzBindAddress  *string `name:"healthz-bind-address" placeholder:"IP:PORT" help:"Address of the health server; --healthz-port=0 for none." config:"healthzBindAddress" address:""`
	MetricsBindAddress  *string `name:"metrics-bind-address" placeholder:"IP:PORT" help:"Address of the metrics server." config:"metricsBindAddress" address:"" daemon:""`
	BindAddressHardFail *bool   `name:"bind-address-hard-fail" help:"Exit if a port cannot be bound." config:"bindAddressHardFail" daemon:""`
	Profiling           *bool   `name:"profiling" help:"Serve profiles at /debug/pprof of the metrics server." config:"enableProfiling" daemon:""`
	ShowHiddenMetrics   *string `name:"show-hidden-metrics-for-version" placeholder:"1.N" help:"Previous minor release; its hidden metrics are shown." config:"showHiddenMetricsForVersion" daemon:""`

	ProxyMode          *string        `name:"proxy-mode" placeholder:"MODE" help:"Proxy mode." config:"mode"`
	Mode               *string        `name:"mode" placeholder:"MODE" help:"Proxy mode; overrides the configuration file. One of iptables, ipvs, nftables, kernelspace, userspace." config:"mode" keep:"" own:""`
	MasqueradeBit      *int32         `name:"iptables-masquerade-bit" placeholder:"N" help:"Bit of the packet mark that requests masquerade, in all modes except nftables." config:"iptables.masqueradeBit"`
	MasqueradeAll      *bool          `name:"masquerade-all" help:"Masquerade every packet to a cluster IP." sets:"masqueradeAll of the mode's section" like:"iptables.masqueradeAll"`
	LocalhostNodePorts *bool          `name:"iptables-localhost-nodeports" help:"Answer node ports at 127.0.0.1 in mode iptables." config:"iptables.localhostNodePorts"`
	IPTablesSync       *time.Duration `name:"iptables-sync-period" placeholder:"DURATION" help:"Longest delay before a failed sync is retried, in every mode except ipvs." sets:"syncPeriod of the mode's section, not ipvs" daemon:"" like:"iptables.syncPeriod"`
	IPTablesMinSync    *time.Duration `name:"iptables-min-sync-period" placeholder:"DURATION" help:"Shortest time between two syncs, in every mode except ipvs." sets:"minSyncPeriod of the mode's section, not ipvs" daemon:"" like:"iptables.minSyncPeriod"`

	IPVSSync          *time.Duration `name:"ipvs-sync-period" placeholder:"DURATION" help:"Longest delay before a failed sync is retried, in mode ipvs." sets:"ipvs.syncPeriod in mode ipvs" daemon:"" like:"ipvs.syncPeriod"`
	IPVSMinSync       *time.Duration `name:"ipvs-min-sync-period" placeholder:"DURATION" help:"Shortest time between two syncs, in mode ipvs." sets:"ipvs.minSyncPeriod in mode ipvs" daemon:"" like:"ipvs.minSyncPeriod"`
	IPVSScheduler     *string        `name:"ipvs-scheduler" placeholder:"NAME" help:"Scheduler of mode ipvs." config:"ipvs.scheduler"`
	IPVSExcludeCIDRs  []string       `name:"ipvs-exclude-cidrs" placeholder:"CIDR" help:"CIDRs of virtual servers that mode ipvs ignores." config:"ipvs.excludeCIDRs" sep:"none" csv:""`
	IPVSStrictARP     *bool          `name:"ipvs-strict-arp" help:"Answer ARP only for addresses of the receiving interface." config:"ipvs.strictARP"`
	IPVSTCPTimeout    *time.Duration `name:"ipvs-tcp-timeout" placeholder:"DURATION" help:"Timeout of idle TCP connections; 0 keeps the kernel's." config:"ipvs.tcpTimeout"`
	IPVSTCPFinTimeout *time.Duration `name:"ipvs-tcpfin-timeout" placeholder:"DURATION" help:"Timeout of TCP connections after a FIN; 0 keeps the kernel's." config:"ipvs.tcpFinTimeout"`
	IPVSUDPTimeout    *time.Duration `name:"ipvs-udp-timeout" placeholder:"DURATION" help:"Timeout of UDP; 0 keeps the kernel's." config:"ipvs.udpTimeout"`

	DetectLocalMode     *string  `name:"detect-local-mode" placeholder:"MODE" help:"How local pods are detected: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix." config:"detectLocalMode"`
	BridgeInterface     *string  `name:"pod-bridge-interface" placeholder:"NAME" help:"Bridge of the pods." config:"detectLocal.bridgeInterface"`
	InterfaceNamePrefix *string  `name:"pod-interface-name-prefix" placeholder:"PREFIX" help:"Prefix of the names of the pods' interfaces." config:"detectLocal.interfaceNamePrefix"`
	ClusterCIDR         *string  `name:"cluster-cidr" placeholder:"CIDR" help:"CIDRs of the cluster's pods, of one family or both." config:"clusterCIDR"`
	NodePortAddresses   []string `name:"nodeport-addresses" placeholder:"CIDR" help:"Addresses that serve node ports: CIDRs, primary, localhost, all." config:"nodePortAddresses" sep:"none" csv:""`

	OOMScoreAdj         *int32         `name:"oom-score-adj" placeholder:"N" help:"oom_score_adj of the process." config:"oomScoreAdj" daemon:""`
	ConntrackMaxPerCore *int32         `name:"conntrack-max-per-core" placeholder:"N" help:"Tracked connections per core; 0 keeps the kernel's limit." config:"conntrack.maxPerCore" daemon:""`
	ConntrackMin        *int32         `name:"conntrack-min" placeholder:"N" help:"Minimum of tracked connections." config:"conntrack.min" daemon:""`
	ConntrackTCP        *time.Duration `name:"conntrack-tcp-timeout-established" placeholder:"DURATION" help:"Timeout of idle TCP connections; 0 keeps the kernel's." config:"conntrack.tcpEstablishedTimeout" daemon:""`
	ConntrackCloseWait  *time.Duration `name:"conntrack-tcp-timeout-close-wait" placeholder:"DURATION" help:"Timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's." config:"conntrack.tcpCloseWaitTimeout" daemon:""`
	ConntrackBeLiberal  *bool          `name:"conntrack-tcp-be-liberal" help:"Accept TCP packets outside of the window as valid." config:"conntrack.tcpBeLiberal"`
	ConntrackUDP        *time.Duration `name:"conntrack-udp-timeout" placeholder:"DURATION" help:"Timeout of UDP without a reply; 0 keeps the kernel's." config:"conntrack.udpTimeout" daemon:""`
	ConntrackUDPStream  *time.Duration `name:"conntrack-udp-timeout-stream" placeholder:"DURATION" help:"Timeout of UDP with replies; 0 keeps the kernel's." config:"conntrack.udpStreamTimeout" daemon:""`
	ConfigSyncPeriod    *time.Duration `name:"config-sync-period" placeholder:"DURATION" help:"No effect: the daemon compares the kernel with its state every hour." config:"configSyncPeriod" daemon:""`

	LoggingFormat  *string        `name:"logging-format" placeholder:"FORMAT" help:"Log format: text, json." config:"logging.format" keep:"" daemon:""`
	FlushFrequency *time.Duration `name:"log-flush-frequency" placeholder:"DURATION" help:"Longest time between two writes of the log." config:"logging.flushFrequency" keep:"" daemon:""`
	Verbosity      *Level         `name:"v" short:"v" placeholder:"N" help:"Log verbosity." config:"logging.verbosity" keep:"" daemon:""`
	VModule        *string        `name:"vmodule" placeholder:"PATTERN=N,..." help:"Log verbosity by source file; overrides the configuration file." sets:"logging.vmodule" keep:"" daemon:""`
	JSONSplit      *bool          `name:"log-json-split-stream" hidden:"" help:"Format json: errors and info messages in two streams." config:"logging.options.json.splitStream" keep:""`
	JSONBuffer     *string        `name:"log-json-info-buffer-size" hidden:"" placeholder:"SIZE" help:"Format json: buffer of the info stream." config:"logging.options.json.infoBufferSize" keep:""`
	TextSplit      *bool          `name:"log-text-split-stream" hidden:"" help:"Format text: errors and info messages in two streams." config:"logging.options.text.splitStream" keep:""`
	TextBuffer     *string        `name:"log-text-info-buffer-size" hidden:"" placeholder:"SIZE" help:"Format text: buffer of the info stream." config:"logging.options.text.infoBufferSize" keep:""`

	WindowsService *bool   `name:"windows-service" help:"Run as a Windows service." config:"windowsRunAsService" keep:"" daemon:""`
	NetworkName    *string `name:"network-name" placeholder:"NAME" help:"HNS network of the cluster." config:"winkernel.networkName"`
	SourceVip      *string `name:"source-vip" placeholder:"IP" help:"Source address for masquerade in overlay networks." config:"winkernel.sourceVip"`
	EnableDSR      *bool   `name:"enable-dsr" help:"Use direct server return." config:"winkernel.enableDSR"`
	RootEndpoint   *string `name:"root-hnsendpoint-name" placeholder:"NAME" help:"HNS endpoint of the host's network namespace." config:"winkernel.rootHnsEndpointName"`
	ForwardHealth  *bool   `name:"forward-healthcheck-vip" help:"Forward the VIP for health check ports." config:"winkernel.forwardHealthCheckVip"`

	HealthzPort *int32 `name:"healthz-port" hidden:"" placeholder:"PORT" help:"Port of the health server; 0 for none. Deprecated: it is used only if --healthz-bind-address has no port." sets:"port of healthzBindAddress"`
	MetricsPort *int32 `name:"metrics-port" hidden:"" placeholder:"PORT" help:"Port of the metrics server. Deprecated: it is used only if --metrics-bind-address has no port." sets:"port of metricsBindAddress"`

	ProxyPortRange    *string        `name:"proxy-port-range" hidden:"" placeholder:"A-B" help:"Proxy ports of mode userspace." config:"portRange" until:"1.26" userspace:""`
	UDPTimeout        *time.Duration `name:"udp-timeout" hidden:"" placeholder:"DURATION" help:"Timeout of idle UDP in mode userspace." config:"udpIdleTimeout" until:"1.26" userspace:""`
	ConntrackMax      *int32         `name:"conntrack-max" hidden:"" placeholder:"N" help:"Tracked connections." config:"conntrack.max" until:"1.15" instead:"--conntrack-max-per-core and --conntrack-min"`
	ResourceContainer *string        `name:"resource-container" hidden:"" placeholder:"NAME" help:"Container of the process." config:"resourceContainer" until:"1.16"`
	CleanupIPVS       *bool          `name:"cleanup-ipvs" hidden:"" help:"Remove IPVS rules with --cleanup, which is always done." sets:"-" keep:"" until:"1.18"`
	AzureRegistry     *string        `name:"azure-container-registry-config" hidden:"" placeholder:"FILE" help:"Belongs to another component." sets:"-" until:"1.14"`
	BootIDFile        *string        `name:"boot-id-file" hidden:"" placeholder:"FILE" help:"Belongs to another component." sets:"-" until:"1.14"`
	MachineIDFile     *string        `name:"machine-id-file" hidden:"" placeholder:"FILE" help:"Belongs to another component." sets:"-" until:"1.14"`

	LogToStderr     *bool   `name:"logtostderr" hidden:"" help:"Log to standard error." sets:"-" until:"1.26"`
	AlsoLogToStderr *bool   `name:"alsologtostderr" hidden:"" help:"Log to standard error and to files." sets:"-" until:"1.26"`
	LogDir          *string `name:"log-dir" hidden:"" placeholder:"DIR" help:"Directory of log files." sets:"-" until:"1.26"`
	LogFile         *string `name:"log-file" hidden:"" placeholder:"FILE" help:"Log file." sets:"-" until:"1.26"`
	LogFileMaxSize  *uint64 `name:"log-file-max-size" hidden:"" placeholder:"MB" help:"Size of the log file." sets:"-" until:"1.26"`
	LogBacktraceAt  *string `name:"log-backtrace-at" hidden:"" placeholder:"FILE:N" help:"Source line whose log lines contain a stack trace." sets:"-" until:"1.26"`
	StderrThreshold *string `name:"stderrthreshold" hidden:"" placeholder:"N" help:"Severity that is written to standard error." sets:"-" until:"1.26"`
	SkipHeaders     *bool   `name:"skip-headers" hidden:"" help:"Log lines without headers." sets:"-" until:"1.26"`
	SkipLogHeaders  *bool   `name:"skip-log-headers" hidden:"" help:"Log files without headers." sets:"-" until:"1.26"`
	AddDirHeader    *bool   `name:"add-dir-header" hidden:"" help:"Log lines with directories." sets:"-" until:"1.26"`
	OneOutput       *bool   `name:"one-output" hidden:"" help:"Each severity in one log file only." sets:"-" until:"1.26"`
}

// Level is a log verbosity. It also accepts "=4", the value that the grammar
// reads from kube-proxy's usual form "-v=4".
type Level uint32

// UnmarshalText parses a verbosity from the command line.
func (l *Level) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(text), "="), 10, 31)
	*l = Level(n)
	return err
}
