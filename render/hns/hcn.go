package hns

// The objects of the Host Compute Network service, schema 2.0, as far as they
// are used here.

// SchemaVersion is the version of an object's schema.
type SchemaVersion struct {
	Major int
	Minor int
}

// schemaVersion2 is that of everything here.
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

// RemoteEndpoint: the endpoint is on another host.
const RemoteEndpoint EndpointFlags = 1

// EndpointPolicy is a policy of an endpoint.
type EndpointPolicy struct {
	Type     string // "ProviderAddress"
	Settings ProviderAddress
}

// ProviderAddress is the address of the host that has an endpoint of an overlay network.
type ProviderAddress struct {
	ProviderAddress string `json:",omitempty"`
}

// HostComputeLoadBalancer spreads connections among endpoints.
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
	DSR    LoadBalancerFlags = 1 // answers go from the endpoint to the client directly
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

// Distribution says what decides which endpoint a connection gets.
type Distribution uint32

const (
	PerConnection Distribution = 0
	SourceIP      Distribution = 2 // all connections of a client's address go to one endpoint
)

// PortFlags are bits of LoadBalancerPortMapping.Flags.
type PortFlags uint32

const (
	LocalRoutedVIP PortFlags = 2  // the host itself reaches it
	UseMux         PortFlags = 4  // DSR for node ports
	PreserveDIP    PortFlags = 8  // endpoints see the VIP as the destination
	VipExternalIP  PortFlags = 16 // the VIP is an address from outside the cluster
)
