"""What a machine needs to train, checked one by one: facts are gathered apart from judging them."""
