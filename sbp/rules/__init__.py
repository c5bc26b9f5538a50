"""The registry: primitive -> rule. A primitive that is not here runs replicated, and the plan says so."""
