.PHONY: lint types arch tests reference e2e ci
lint types arch tests reference e2e:
	nox -s $@
ci:
	.ci/run
