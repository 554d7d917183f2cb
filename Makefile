.PHONY: lint types arch tests e2e ci
lint types arch tests e2e:
	nox -s $@
ci:
	.ci/run
