// Package config loads KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1):
// types, parsing with positions, defaults, validation, and kube-proxy's flags.
package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// APIVersion and Kind are the required header of a configuration file (CFG-1).
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// Config is a KubeProxyConfiguration with every field of any release of v1alpha1.
// As upstream, pointers distinguish unset from zero.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	FeatureGates map[string]bool `json:"featureGates,omitempty"`

	ClientConnection ClientConnection `json:"clientConnection"`
	Logging          Logging          `json:"logging,omitempty"`

	HostnameOverride            string `json:"hostnameOverride"`
	BindAddress                 string `json:"bindAddress"`
	HealthzBindAddress          string `json:"healthzBindAddress"`
	MetricsBindAddress          string `json:"metricsBindAddress"`
	BindAddressHardFail         bool   `json:"bindAddressHardFail"`
	EnableProfiling             bool   `json:"enableProfiling"`
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`

	Mode      string    `json:"mode"`
	IPTables  IPTables  `json:"iptables"`
	IPVS      IPVS      `json:"ipvs"`
	NFTables  NFTables  `json:"nftables"`
	Winkernel Winkernel `json:"winkernel"`

	DetectLocalMode string      `json:"detectLocalMode"`
	DetectLocal     DetectLocal `json:"detectLocal"`
	ClusterCIDR     string      `json:"clusterCIDR"`

	NodePortAddresses []string `json:"nodePortAddresses"`

	OOMScoreAdj      *int32          `json:"oomScoreAdj"`
	Conntrack        Conntrack       `json:"conntrack"`
	ConfigSyncPeriod metav1.Duration `json:"configSyncPeriod"`

	PortRange string `json:"portRange"`
	// UDPIdleTimeout was removed in 1.26; mode userspace uses it.
	UDPIdleTimeout metav1.Duration `json:"udpIdleTimeout,omitzero"`
	// ResourceContainer was removed in 1.16.
	ResourceContainer string `json:"resourceContainer,omitempty"`

	WindowsRunAsService bool `json:"windowsRunAsService,omitempty"`
}

// ClientConnection configures access to the API server.
type ClientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

// IPTables applies to modes iptables and ipvs.
type IPTables struct {
	MasqueradeBit      *int32          `json:"masqueradeBit"`
	MasqueradeAll      bool            `json:"masqueradeAll"`
	LocalhostNodePorts *bool           `json:"localhostNodePorts"`
	SyncPeriod         metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod      metav1.Duration `json:"minSyncPeriod"`
}

// IPVS applies to mode ipvs.
type IPVS struct {
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    metav1.Duration `json:"tcpTimeout"`
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	UDPTimeout    metav1.Duration `json:"udpTimeout"`
}

// NFTables applies to mode nftables.
type NFTables struct {
	MasqueradeBit *int32          `json:"masqueradeBit"`
	MasqueradeAll bool            `json:"masqueradeAll"`
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
}

// Winkernel applies to mode kernelspace.
type Winkernel struct {
	NetworkName           string `json:"networkName"`
	SourceVip             string `json:"sourceVip"`
	EnableDSR             bool   `json:"enableDSR"`
	RootHnsEndpointName   string `json:"rootHnsEndpointName"`
	ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
}

// DetectLocal holds the parameters of detectLocalMode.
type DetectLocal struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// Conntrack holds the kernel's connection tracking settings.
type Conntrack struct {
	// Max was removed in 1.15; maxPerCore and min replace it.
	Max                   *int32           `json:"max,omitempty"`
	MaxPerCore            *int32           `json:"maxPerCore"`
	Min                   *int32           `json:"min"`
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool             `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration  `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
}
