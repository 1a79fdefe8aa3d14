package nftables

// Bytes is how much a commit of the Plan sends to the kernel, without the
// entries of affinity maps that it finds there.
func (p *Plan) Bytes() (n int) {
	for _, m := range newBatch(p, nil).messages {
		n += netlinkHead + align(len(m.data))
	}
	return n
}
