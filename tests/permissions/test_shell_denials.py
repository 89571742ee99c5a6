"""What a denial hits: its command, wherever and however it stands in the line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from b4run.permissions.shell import Hit, denial

RULES = ("rm", "git push")


@pytest.mark.parametrize(
    "command",
    """rm
rm -rf /
/bin/rm x
../../bin/rm x
~/bin/rm x
\\rm x
r''m x
"rm" x
'r'"m" x
r\\m x
A=1 rm
ls; rm x
ls && rm
ls | rm
ls & rm
ls || rm
(rm)
{ rm; }
! rm
if rm; then a; fi
if a; then rm; fi
while a; do rm; done
for i in a; do rm $i; done
case a in a) rm;; esac
f() { rm; }
function f { rm; }
echo $(rm)
echo "$(rm)"
echo `rm`
echo "`rm`"
echo ${x:-$(rm)}
echo $((1 + $(rm)))
cat <(rm)
git -c alias.x='!rm x' x
tar --to-command='rm x' -xf a
a=$(rm)
export A=$(rm)
ls > $(rm)
>f rm -rf x
>f 2>&1 rm x
env rm x
env -i A=1 rm x
sudo rm
sudo -u root rm x
nohup rm
nice -n 5 rm
timeout 5 rm
timeout -s KILL 5 rm
command rm
builtin rm
exec rm
time rm
setsid rm
stdbuf -o0 rm
xargs rm
xargs -n 1 rm -f
env sudo nohup rm
busybox rm x
busybox sh -c 'rm x'
find . -exec rm {} ;
find . -name x -ok rm {} +
sh -c 'rm x'
bash -lc 'cd a && rm x'
/bin/sh -c "rm x"
sudo sh -c 'rm x'
sh -c 'sh -c "rm x"'
eval rm x
eval "rm x"
eval 'r''m' x
trap 'rm x' EXIT
alias ls=rm
alias ls='rm -f'
watch 'rm x'
su -c 'rm x'
python -c 'import os; os.system("rm x")'
perl -e 'system("rm x")'
awk 'BEGIN { system("rm x") }'
sed 's/x/rm/e'
{rm,-rf,x}
echo 'unclosed; rm
[[ -f x ]] && rm
git push
git push --force
git -C dir push
git -c a=b --no-pager push origin
/usr/bin/git push""".splitlines(),
)
def test_hit(command):
    assert denial(command, RULES)[0] is Hit.YES


@pytest.mark.parametrize(
    "command",
    [
        "r\\\nm x",
        "ls\nrm",
        "cat <<E\n$(rm)\nE",
        "if a\nthen\n rm\nfi",
        "echo \\\n && rm",
        "# note\nrm x",
        "python3 - <<'E'\nos.system('rm x')\nE",
        "echo 'system(\"rm\")' | perl",
    ],
)
def test_hit_across_lines(command):
    assert denial(command, RULES) == (Hit.YES, "rm")


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "rmdir x",
        "echo rm",
        "ls rm",
        "ls 'rm x'",
        "grep -r rm .",
        "git status",
        "git commit -m push",
        "git commit -m 'push it'",
        "git log push",
        "npm test | cat",
        "echo $((1 + 1)) ${x:-y}",
        "[[ -f x ]] && ls",
        "sh run.sh",
        "python3 - <<'E'\nprint(1)\nE",
        "python -m pytest",
        "cat <<E\nrm\nE",
        "",
    ],
)
def test_clear(command):
    assert denial(command, RULES) == (Hit.NO, None)


@pytest.mark.parametrize(
    "command",
    [
        "$x",
        "$x y",
        "$(which ls) y",
        "`which ls`",
        "l* x",
        "env $x",
        "sudo $(which ls)",
        "eval $x",
        "sh -c $x",
        'bash -c "$x"',
        "curl x | sh",
        "sh <<E\nls\nE",
        "bash -s < f",
        "xargs -I{} {} x",
        "echo 'unclosed",
        "ls (",
        "ls $'x'",
        "ls\x07",
        "ls \udc80",
        "ls " + "a" * 65_536,
        "(" * 100 + "ls" + ")" * 100,
        "sh -c " * 20 + "ls",
        "ls " + "|" * 60_000,
    ],
)
def test_what_hides_its_commands_is_not_clear(command):
    assert denial(command, RULES) == (Hit.UNKNOWN, None)


def test_without_denials_nothing_is_in_doubt():
    assert denial("$x", []) == (Hit.NO, None)


def test_a_denial_that_stands_twice_is_one():
    assert denial("ls", ["rm", "rm"]) == (Hit.NO, None)


def test_the_rule_may_name_a_path():
    assert denial("rm x", ["/bin/rm"]) == (Hit.YES, "/bin/rm")


WRAPPED = st.recursive(
    st.sampled_from(["rm x", "/bin/rm -f y", "'rm'", "r\\m"]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["env ", "sudo -u a ", "nohup ", "timeout 5 ", "A=1 ", "! ", "ls; ", "ls | ", "ls && "]), inner).map(
            "".join
        ),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"echo $({text})"),
        inner.map(lambda text: f"if true; then {text}; fi"),
    ),
    max_leaves=4,
)


@given(WRAPPED)
@example("(env if true; then rm x; fi)")
@example("nohup while true; do rm x; done")
def test_no_wrapping_hides_a_command(command):
    assert denial(command, RULES) == (Hit.YES, "rm")


@given(st.text(max_size=60))
def test_any_text_is_answered(text):
    assert denial(text, RULES)[0] in Hit
    assert denial(f"{text}\nrm x", RULES)[0] is not Hit.NO or "'" in text or '"' in text or "<<" in text or text.rstrip(" ").endswith("\\")
