package nftables

// Numbers of linux/netfilter/nf_tables.h, under its names. The package
// golang.org/x/sys/unix has most of them, on Linux alone.
const (
	nftaChainName   = 3
	nftaChainHook   = 4
	nftaChainPolicy = 5
	nftaChainType   = 7
	nftaChainFlags  = 10

	nftaHookNum      = 1
	nftaHookPriority = 2

	nftaSetName        = 2
	nftaSetFlags       = 3
	nftaSetKeyType     = 4
	nftaSetKeyLen      = 5
	nftaSetDataType    = 6
	nftaSetDataLen     = 7
	nftaSetPolicy      = 8
	nftaSetDesc        = 9
	nftaSetTimeout     = 11
	nftaSetGCInterval  = 12
	nftaSetObjType     = 15
	nftaSetExpr        = 17
	nftaSetExpressions = 18

	nftaSetDescSize = 1

	nftaElemKey      = 1
	nftaElemData     = 2
	nftaElemUserData = 6
	nftaElemKeyEnd   = 10

	nftaObjTable = 1
	nftaObjName  = 2
	nftaObjType  = 3

	nftaFlowtableTable = 1
	nftaFlowtableName  = 2

	nftaNATFlags = 7
	natAddrs     = 0x1 // NF_NAT_RANGE_MAP_IPS
	natPorts     = 0x2 // NF_NAT_RANGE_PROTO_SPECIFIED

	flagAnonymous = 0x1 // of a set
	flagBinding   = 0x4 // of a chain
)
