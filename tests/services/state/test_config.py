from __future__ import annotations

import pytest

from services.config_file import ConfigError, load_config


def test_the_url_is_checked_and_never_repeated() -> None:
    assert load_config(None, []).state.redis_url is None
    assert load_config(None, ["state.redis_url=redis://h:6379/0"]).state.redis_url == "redis://h:6379/0"
    with pytest.raises(ConfigError, match=r"state\.redis_url must be redis://") as caught:
        load_config(None, ["state.redis_url=http://:pa55w0rd@h"])
    assert "pa55w0rd" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"did you mean state\.redis_url"):
        load_config(None, ["state.redis=redis://h"])
