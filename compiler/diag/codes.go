package diag

// Code identifies the check that made a finding. Codes are stable, since annotations and
// files of suppressions contain them; a removed code is never reused. checks.txt describes
// each code, and the hundreds of the numbers are its groups.
type Code string

// Unreadable reports whether the code means that text could not be read. Its content
// was not checked, so such a finding cannot be suppressed.
func (c Code) Unreadable() bool { return c == FileUnreadable || c == NotYAML }

// Hijacks reports whether the code means that a Service claims an address owned by
// something else.
func (c Code) Hijacks() bool {
	return c == ExternalIPOfNode || c == ExternalIPInside || c == ExternalIPKnown
}

// Files and objects.
const (
	FileUnreadable  Code = "PX101"
	FileSkipped     Code = "PX102"
	NotYAML         Code = "PX104"
	NoKind          Code = "PX105"
	KindMisspelt    Code = "PX106"
	FieldType       Code = "PX107"
	FieldUnknown    Code = "PX108"
	FieldDuplicate  Code = "PX109"
	ObjectDuplicate Code = "PX110"
	ObjectName      Code = "PX111"
	FieldWord       Code = "PX112"
	NoServices      Code = "PX113"
	NoSlices        Code = "PX114"
	NoClusterIP     Code = "PX115"
	FromEndpoints   Code = "PX116"
	NotSuppressing  Code = "PX117"
	OtherProxy      Code = "PX118"
	PortsMissing    Code = "PX119"
	NodeAddress     Code = "PX120"
	AnnotationKey   Code = "PX121"
	KindsIgnored    Code = "PX122"
	VersionRemoved  Code = "PX123"
	FileRendered    Code = "PX124"
)

// Configuration and node.
const (
	ConfigValue        Code = "PX201"
	ConfigType         Code = "PX202"
	ConfigKey          Code = "PX203"
	ConfigKeyDuplicate Code = "PX204"
	ConfigMissing      Code = "PX205"
	ConfigSecond       Code = "PX206"
	ConfigNoEffect     Code = "PX207"
	FlagNoEffect       Code = "PX208"
	FlagValue          Code = "PX209"
	GateRefused        Code = "PX210"
	GateNoEffect       Code = "PX211"
	GateForeign        Code = "PX212"
	ClusterCIDRFamily  Code = "PX213"
	NodeCIDRFamily     Code = "PX214"
	NodePortsFamily    Code = "PX215"
	AddressFamily      Code = "PX216"
	NodePortsAll       Code = "PX217"
	NoPodRange         Code = "PX218"
	NodeUnknown        Code = "PX219"
	NodeAddresses      Code = "PX220"
	PodRangeOutside    Code = "PX221"
	NodePortsNowhere   Code = "PX222"
)

// Services.
const (
	PortValue         Code = "PX301"
	PortDuplicate     Code = "PX302"
	VIPValue          Code = "PX303"
	FamilyNoAddress   Code = "PX304"
	VIPNotServed      Code = "PX305"
	VIPDuplicate      Code = "PX306"
	VIPBothKinds      Code = "PX307"
	TooManyFrontends  Code = "PX308"
	AffinityTimeout   Code = "PX309"
	HealthPortMissing Code = "PX310"
	CIDRValue         Code = "PX311"
	TooManyBackends   Code = "PX312"
	BalanceValue      Code = "PX313"
	BalanceNoEffect   Code = "PX314"
	BalanceFewSlots   Code = "PX315"
	NodePortRange     Code = "PX316"
	ExternalNameIP    Code = "PX317"
	HeadlessNoEffect  Code = "PX318"
	DearService       Code = "PX319"
)

// Endpoints.
const (
	SliceNoService       Code = "PX401"
	SliceAddressType     Code = "PX402"
	SlicePort            Code = "PX403"
	EndpointAddress      Code = "PX404"
	EndpointUnusable     Code = "PX405"
	EndpointMulticast    Code = "PX406"
	EndpointDuplicate    Code = "PX407"
	NoEndpoints          Code = "PX410"
	NoEndpointsByHand    Code = "PX411"
	NoneReady            Code = "PX412"
	PortUnserved         Code = "PX413"
	ProtocolUnserved     Code = "PX414"
	SliceOrphan          Code = "PX415"
	EndpointNode         Code = "PX416"
	EndpointOutside      Code = "PX417"
	EndpointIsVIP        Code = "PX418"
	SliceFamily          Code = "PX419"
	HintsIgnored         Code = "PX420"
	HintsNowhere         Code = "PX421"
	ExternalLocalAbsent  Code = "PX422"
	InternalLocalAbsent  Code = "PX423"
	SelectorUnmatched    Code = "PX424"
	SelectorSeveral      Code = "PX425"
	TargetPortUnknown    Code = "PX426"
	TargetPortUndeclared Code = "PX427"
	BackendPort          Code = "PX428"
	WorkloadSelector     Code = "PX429"
	WorkloadService      Code = "PX430"
	BackendService       Code = "PX431"
	TargetPortProtocol   Code = "PX432"
	SelectorJob          Code = "PX433"
)

// Conflicts over addresses and ports.
const (
	VIPClaimed        Code = "PX501"
	NodePortClaimed   Code = "PX502"
	NodePortHidden    Code = "PX503"
	ExternalIPOfNode  Code = "PX504"
	ExternalIPInside  Code = "PX505"
	ExternalIPKnown   Code = "PX506"
	ClusterIPOutside  Code = "PX507"
	CIDRsOverlap      Code = "PX508"
	HealthPortClaimed Code = "PX509"
	OwnPort           Code = "PX510"
	EndpointShared    Code = "PX511"
)

// Source ranges.
const (
	RangeValue       Code = "PX601"
	RangesClosed     Code = "PX602"
	RangesOneFamily  Code = "PX603"
	RangesNodePort   Code = "PX604"
	RangeCovered     Code = "PX605"
	RangeAll         Code = "PX606"
	RangeAllIPVS     Code = "PX607"
	RangesNoEffect   Code = "PX608"
	RangesExternalIP Code = "PX609"
)

// Unsupported by the mode or a gate.
const (
	ModePolicies   Code = "PX701"
	ModeSources    Code = "PX702"
	ModeHealth     Code = "PX703"
	ModeSCTP       Code = "PX704"
	ModeAffinity   Code = "PX705"
	ModePorts      Code = "PX706"
	ModeNodePorts  Code = "PX707"
	ExternalIPsOff Code = "PX708"
	ModeLocalhost  Code = "PX709"
	ModeBalance    Code = "PX710"
)

// Deprecations, and changes of coming releases.
const (
	ModeUnset          Code = "PX801"
	ModeIPVS           Code = "PX802"
	ExternalIPsEnd     Code = "PX803"
	PreferClose        Code = "PX804"
	LocalhostNodePorts Code = "PX805"
	KernelOld          Code = "PX806"
)
