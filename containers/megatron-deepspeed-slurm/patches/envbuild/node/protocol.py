Json = dict


class NodeError(Exception):
    def __init__(self, code, what, why="", *_, **__):
        super().__init__("%s: %s%s" % (code, what, " (%s)" % why if why else ""))


def log(text):
    print(text)


def plural(count, noun):
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")
