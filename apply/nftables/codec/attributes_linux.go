package codec

// Numbers of linux/netfilter/nf_tables.h that golang.org/x/sys/unix does not
// have, under the header's names.
const (
	nftaChainFlags  = 10 // NFTA_CHAIN_FLAGS
	nftChainBinding = 4  // NFT_CHAIN_BINDING

	nftaSetExpr        = 17 // NFTA_SET_EXPR
	nftaSetExpressions = 18 // NFTA_SET_EXPRESSIONS

	nftaBitwiseOp     = 6 // NFTA_BITWISE_OP
	nftBitwiseMaskXor = 0 // NFT_BITWISE_MASK_XOR

	NFTTableOwner   = 2 // NFT_TABLE_F_OWNER: only one process may change the table
	NFTTablePersist = 4 // NFT_TABLE_F_PERSIST: the table remains when its owner ends

	NFTATableOwner = 7 // NFTA_TABLE_OWNER

	NFTAFlowtableTable = 1 // NFTA_FLOWTABLE_TABLE
	NFTAFlowtableName  = 2 // NFTA_FLOWTABLE_NAME

	ipsDstNAT    = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	ctStateNew   = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW) of the same
	ipCTDirOrig  = 0      // IP_CT_DIR_ORIGINAL of linux/netfilter/nf_conntrack_tuple_common.h
	verdictBytes = 16     // of struct nft_verdict of include/net/netfilter/nf_tables.h

	nfDrop   = 0 // NF_DROP of linux/netfilter.h
	nfAccept = 1 // NF_ACCEPT of the same

	icmpPortUnreachable   = 3 // ICMP_PORT_UNREACH of linux/icmp.h
	icmpv6PortUnreachable = 4 // ICMPV6_PORT_UNREACH of linux/icmpv6.h
)

// The user data of a set and its contents: enum nftnl_udata_set_types of libnftnl/udata.h. Only nft
// and libnftnl interpret them; the kernel stores them.
const (
	udataSetKeyByteOrder  = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
	udataSetDataByteOrder = 1 // NFTNL_UDATA_SET_DATABYTEORDER
	udataSetKeyTypeof     = 3 // NFTNL_UDATA_SET_KEY_TYPEOF
	udataSetDataTypeof    = 4 // NFTNL_UDATA_SET_DATA_TYPEOF
	udataSetDataInterval  = 6 // NFTNL_UDATA_SET_DATA_INTERVAL

	udataSetTypeofExpr = 0 // NFTNL_UDATA_SET_TYPEOF_EXPR
	udataSetTypeofData = 1 // NFTNL_UDATA_SET_TYPEOF_DATA

	UdataElemComment      = 0 // NFTNL_UDATA_SET_ELEM_COMMENT
	udataElemFlags        = 1 // NFTNL_UDATA_SET_ELEM_FLAGS
	udataElemIntervalOpen = 1 // SET_ELEM_F_INTERVAL_OPEN of nft's include/rule.h

	byteOrderBig = 2 // BYTEORDER_BIG_ENDIAN of nft's include/datatype.h; 0 is none

	// enum expr_ops of nft's include/expression.h.
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	// The user data of a payload expression (src/payload.c): the protocol, and the number of
	// a field in it.
	udataPayloadDesc = 0
	udataPayloadType = 1
	descTransport    = 11 // PROTO_DESC_TH
	descIP           = 12 // PROTO_DESC_IP
	descIP6          = 13 // PROTO_DESC_IP6
	fieldDstPort     = 2  // THHDR_DPORT
	fieldIPDstAddr   = 12 // IPHDR_DADDR
	fieldIP6DstAddr  = 9  // IP6HDR_DADDR

	udataMetaKey = 0 // src/meta.c

	udataNumgenType   = 0 // src/numgen.c
	udataNumgenMod    = 1
	udataNumgenOffset = 2
)
