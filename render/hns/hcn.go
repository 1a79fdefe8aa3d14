package hns

// The subset of Host Compute Network objects, schema 2.0, that this package uses.

// SchemaVersion is the version of an object's schema.
type SchemaVersion struct {
	Major int
	Minor int
}

// schemaVersion2 is the version of all objects here.
var schemaVersion2 = SchemaVersion{Major: 2}

// HostComputeEndpoint is a network endpoint.
type HostComputeEndpoint struct {
	Name             string           `json:",omitempty"`
	Policies         []EndpointPolicy `json:",omitempty"`
	IpConfigurations []IpConfig       `json:",omitempty"`
	MacAddress       string           `json:",omitempty"`
	Flags            EndpointFlags    `json:",omitempty"`
	SchemaVersion    SchemaVersion
}

// IpConfig is an address of an endpoint.
type IpConfig struct {
	IpAddress    string `json:",omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// EndpointFlags are bits of HostComputeEndpoint.Flags.
type EndpointFlags uint32

// RemoteEndpoint marks an endpoint on another host.
const RemoteEndpoint EndpointFlags = 1

// EndpointPolicy is a policy of an endpoint.
type EndpointPolicy struct {
	Type     string // "ProviderAddress"
	Settings ProviderAddress
}

// ProviderAddress is the address of the host of an endpoint on an overlay
// network.
type ProviderAddress struct {
	ProviderAddress string `json:",omitempty"`
}

// HostComputeLoadBalancer distributes connections among endpoints.
type HostComputeLoadBalancer struct {
	HostComputeEndpoints []string                  `json:",omitempty"`
	SourceVIP            string                    `json:",omitempty"`
	FrontendVIPs         []string                  `json:",omitempty"`
	PortMappings         []LoadBalancerPortMapping `json:",omitempty"`
	SchemaVersion        SchemaVersion
	Flags                LoadBalancerFlags `json:",omitempty"`
}

// LoadBalancerFlags are bits of HostComputeLoadBalancer.Flags.
type LoadBalancerFlags uint32

const (
	DSR    LoadBalancerFlags = 1 // replies are sent directly from the endpoint to the client
	IPv6LB LoadBalancerFlags = 2
)

// LoadBalancerPortMapping is one port of a load balancer.
type LoadBalancerPortMapping struct {
	Protocol         uint32       `json:",omitempty"` // IANA number
	InternalPort     uint16       `json:",omitempty"` // of the endpoints
	ExternalPort     uint16       `json:",omitempty"` // of the VIP
	DistributionType Distribution `json:",omitempty"`
	Flags            PortFlags    `json:",omitempty"`
}

// Distribution determines how the endpoint of a connection is selected.
type Distribution uint32

const (
	PerConnection Distribution = 0
	SourceIP      Distribution = 2 // all connections of a client's address use one endpoint
)

// PortFlags are bits of LoadBalancerPortMapping.Flags.
type PortFlags uint32

const (
	LocalRoutedVIP PortFlags = 2  // reachable from the host itself
	UseMux         PortFlags = 4  // DSR for node ports
	PreserveDIP    PortFlags = 8  // endpoints receive the VIP as the destination
	VipExternalIP  PortFlags = 16 // the VIP is an address from outside the cluster
)
