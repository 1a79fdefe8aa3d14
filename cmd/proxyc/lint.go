package main

type lintCmd struct {
	input
}

// Run prints the diagnostics of a compilation, and nothing else.
func (c *lintCmd) Run(e *env) error {
	job, err := c.load(e)
	if err != nil {
		return err
	}
	job.compile()
	found := len(job.diags) > 0
	if err := job.finish(e, nil); err != nil {
		return err
	}
	if found {
		return errFindings
	}
	return nil
}
