.PHONY: lint types arch tests support lowest newest pytorch reference docs e2e ci
lint types arch tests support lowest newest pytorch reference docs e2e:
	nox -s $@
ci:
	.ci/run
